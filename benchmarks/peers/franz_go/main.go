// The producer benchmark's records, sent by franz-go; benchmarks/producer_contenders.py has the
// same in Python.
//
//	franz_go throughput|latency TOPIC RECORDS
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	different   = 1000
	valueBytes  = 120
	ratePerSec  = 5000
	linger      = 5 * time.Millisecond
	mostWaiting = 1_000_000
)

type took struct {
	Seconds   float64   `json:"seconds"`
	Latencies []float64 `json:"latencies_s"`
	Memory    int64     `json:"peak_memory_bytes"`
}

func main() {
	measure, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	records := records(topic, count)
	start := time.Now()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Getenv("KAFKA_BOOTSTRAP_SERVERS"), ",")...),
		kgo.RequiredAcks(kgo.AllISRAcks()), // idempotent by default
		kgo.ProducerLinger(linger),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		kgo.MaxBufferedRecords(mostWaiting),
	)
	if err != nil {
		log.Fatal(err)
	}
	latencies := []float64{}
	if measure == "latency" {
		latencies = atRate(client, records)
	} else {
		asFastAsItCan(client, records)
	}
	if err := client.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}
	client.Close()
	result := took{time.Since(start).Seconds(), latencies, peakMemory()}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}

func asFastAsItCan(client *kgo.Client, records func(int) *kgo.Record) {
	confirmed := func(_ *kgo.Record, err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	for number := 0; ; number++ {
		record := records(number)
		if record == nil {
			return
		}
		client.Produce(context.Background(), record, confirmed)
	}
}

// atRate sends each record when it is due; it returns the seconds from then to its confirmation.
func atRate(client *kgo.Client, records func(int) *kgo.Record) []float64 {
	var guard sync.Mutex
	var latencies []float64
	start := time.Now()
	for number := 0; ; number++ {
		record := records(number)
		if record == nil {
			break
		}
		due := start.Add(time.Duration(number) * time.Second / ratePerSec)
		for time.Now().Before(due) {
			time.Sleep(time.Millisecond)
		}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				log.Fatal(err)
			}
			guard.Lock()
			latencies = append(latencies, time.Since(due).Seconds())
			guard.Unlock()
		})
	}
	if err := client.Flush(context.Background()); err != nil {
		log.Fatal(err)
	}
	guard.Lock()
	defer guard.Unlock()
	return latencies
}

// records gives each record by its number, and nil behind the last.
func records(topic string, count int) func(int) *kgo.Record {
	keys, values := make([][]byte, different), make([][]byte, different)
	for number := range different {
		keys[number] = fmt.Appendf(nil, "host-%03d|%d", number/4, number%4)
		reading := fmt.Sprintf(
			`{"hostname":"host-%03d","cpu":%d,"usage":%06.2f,"occurred_at":%d,"note":"`,
			number/4, number%4, math.Mod(float64(number)*37.61, 100), 1_700_000_000_000+number*7919,
		)
		values[number] = []byte(reading + strings.Repeat("x", valueBytes-len(reading)-2) + `"}`)
	}
	headers := []kgo.RecordHeader{{Key: "trace", Value: []byte("0123456789abcdef")}}
	return func(number int) *kgo.Record {
		if number >= count {
			return nil
		}
		return &kgo.Record{
			Topic:   topic,
			Key:     keys[number%different],
			Value:   values[number*7%different],
			Headers: headers,
		}
	}
}

func peakMemory() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return usage.Maxrss * 1024
}
