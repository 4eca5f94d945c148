BEGIN TRANSACTION;
CREATE TABLE counts (
	"key" TEXT NOT NULL, 
	value BIGINT NOT NULL, 
	previous BIGINT, 
	txid BIGINT NOT NULL, 
	task INTEGER NOT NULL, 
	PRIMARY KEY ("key")
)
 WITHOUT ROWID

;
INSERT INTO "counts" VALUES('a',2,1,2,0);
INSERT INTO "counts" VALUES('b',1,NULL,1,1);
CREATE TABLE sequitur_schema (
	version INTEGER NOT NULL
);
INSERT INTO "sequitur_schema" VALUES(1);
CREATE TABLE sequitur_states (
	name TEXT NOT NULL, 
	topology TEXT NOT NULL, 
	component TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	key_type TEXT NOT NULL, 
	value_type TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "sequitur_states" VALUES('counts','words','sum','transactional','str','int');
CREATE TABLE sequitur_topologies (
	topology TEXT NOT NULL, 
	epoch TEXT NOT NULL, 
	least_attempt BIGINT NOT NULL, 
	PRIMARY KEY (topology)
);
INSERT INTO "sequitur_topologies" VALUES('words','e1',1048576);
CREATE TABLE sequitur_transactions (
	topology TEXT NOT NULL, 
	component TEXT NOT NULL, 
	task INTEGER NOT NULL, 
	txid BIGINT NOT NULL, 
	attempt BIGINT NOT NULL, 
	former_txid BIGINT, 
	batch TEXT NOT NULL, 
	PRIMARY KEY (topology, component, task)
);
INSERT INTO "sequitur_transactions" VALUES('words','sum',0,2,1048578,1,'b2');
INSERT INTO "sequitur_transactions" VALUES('words','sum',1,1,1048577,NULL,'b1');
COMMIT;
