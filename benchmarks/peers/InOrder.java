import org.apache.flink.table.annotation.ArgumentHint;
import org.apache.flink.table.annotation.ArgumentTrait;
import org.apache.flink.table.annotation.DataTypeHint;
import org.apache.flink.table.functions.ProcessTableFunction;
import org.apache.flink.types.Row;

/** Puts out each row of a key as it comes: {@code ORDER BY} of its argument has put them in order. */
@DataTypeHint("ROW<hostname STRING, cpu INT, `usage` DOUBLE, occurred_at BIGINT, number BIGINT>")
public class InOrder extends ProcessTableFunction<Row> {
    private static final long serialVersionUID = 1L;

    public void eval(@ArgumentHint(ArgumentTrait.SET_SEMANTIC_TABLE) Row arrived) {
        collect(
                Row.of(
                        arrived.getField("hostname"),
                        arrived.getField("cpu"),
                        arrived.getField("usage"),
                        arrived.getField("occurred_at"),
                        arrived.getField("number")));
    }
}
