// Benchmark of NATS JetStream with its own Go client. It prints one JSON object for each result, as
// the clients of the other systems do. Arguments are NAME=VALUE:
//
//	mode=stream   n records of size bytes to one stream, then read from its beginning  (produce, consume)
//	mode=latency  n records, each after the acknowledgement of the one before          (latency)
//	mode=half     rate records/s for `seconds`: from the time a record is due to its acknowledgement
//	mode=many     n records to each of `topics` streams at once
//	mode=loss     a stream; after a line of standard input, records with numbers until it ends; then
//	              how many were acknowledged
//	mode=check    reads a stream that `loss` wrote, and prints how many of 0..n-1 are missing
//
// at=HOST:PORT,...  name=STREAM  rounds=R  window=RECORDS (publishes without an acknowledgement)
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const callLimit = 60 * time.Second

var (
	given  = map[string]string{}
	failed atomic.Int64
	ctx    = context.Background()
)

func get(name, otherwise string) string {
	if value, ok := given[name]; ok {
		return value
	}
	return otherwise
}

func number(name string, otherwise int) int {
	value, err := strconv.Atoi(get(name, strconv.Itoa(otherwise)))
	must(err)
	return value
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "nats bench:", err)
		os.Exit(1)
	}
}

func show(kind string, pairs ...any) {
	line := fmt.Sprintf(`{"kind": %q, "errors": %d`, kind, failed.Swap(0))
	for i := 0; i < len(pairs); i += 2 {
		line += fmt.Sprintf(`, %q: %.3f`, pairs[i], pairs[i+1])
	}
	fmt.Println(line + "}")
}

func at(sorted []time.Duration, share float64) float64 {
	place := int(float64(len(sorted)) * share)
	if place >= len(sorted) {
		place = len(sorted) - 1
	}
	return float64(sorted[place].Nanoseconds()) / 1e6
}

func percentiles(took []time.Duration) (float64, float64) {
	sort.Slice(took, func(a, b int) bool { return took[a] < took[b] })
	return at(took, .5), at(took, .99)
}

// connect returns a client whose publishes may be outstanding up to `window` at a time.
func connect() (*nats.Conn, jetstream.JetStream) {
	urls := "nats://" + strings.ReplaceAll(get("at", ""), ",", ",nats://")
	conn, err := nats.Connect(urls, nats.MaxReconnects(-1))
	must(err)
	js, err := jetstream.New(conn,
		jetstream.WithPublishAsyncMaxPending(number("window", 4000)),
		jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { failed.Add(1) }))
	must(err)
	return conn, js
}

// create tries again while the servers elect a leader.
func create(js jetstream.JetStream, name string) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for {
		call, done := context.WithTimeout(limited, 5*time.Second)
		_, err := js.CreateStream(call, jetstream.StreamConfig{
			Name: name, Subjects: []string{name}, Replicas: 3, Storage: jetstream.FileStorage,
		})
		done()
		if err == nil {
			return
		}
		if limited.Err() != nil {
			must(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func remove(js jetstream.JetStream, name string) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	must(js.DeleteStream(limited, name))
}

func publishOne(js jetstream.JetStream, name string, payload []byte) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := js.Publish(limited, name, payload)
	must(err)
}

// send publishes without waiting for each acknowledgement. The client blocks while its window is full.
func send(js jetstream.JetStream, names []string, each int, payload []byte) {
	for range each {
		for _, name := range names {
			if _, err := js.PublishAsync(name, payload, jetstream.WithStallWait(callLimit)); err != nil {
				failed.Add(1)
			}
		}
	}
	<-js.PublishAsyncComplete()
}

func stream(js jetstream.JetStream, name string, n int, payload []byte) {
	create(js, name)
	publishOne(js, name, payload)
	began := time.Now()
	send(js, []string{name}, n, payload)
	seconds := time.Since(began).Seconds()
	rate := float64(n) / seconds
	show("produce", "records", float64(n), "rate_per_s", rate, "mb_per_s", rate*float64(len(payload))/1e6)
	seen, seconds := read(js, name, n+1, func([]byte) {})
	rate = float64(seen) / seconds
	show("consume", "records", float64(seen), "rate_per_s", rate, "mb_per_s", rate*float64(len(payload))/1e6)
	remove(js, name)
}

// read returns the number of records, up to n, and the seconds that they took.
func read(js jetstream.JetStream, name string, n int, each func([]byte)) (int, float64) {
	consumer, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{})
	must(err)
	began := time.Now()
	messages, err := consumer.Messages(jetstream.PullMaxMessages(number("pull", 10_000)))
	must(err)
	defer messages.Stop()
	seen := 0
	for seen < n {
		message, err := messages.Next()
		must(err)
		each(message.Data())
		seen++
	}
	return seen, time.Since(began).Seconds()
}

func latency(js jetstream.JetStream, name string, n int, payload []byte) {
	create(js, name)
	publishOne(js, name, payload)
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		publishOne(js, name, payload)
		took[i] = time.Since(began)
	}
	p50, p99 := percentiles(took)
	show("latency", "records", float64(n), "p50_ms", p50, "p99_ms", p99)
	remove(js, name)
}

func half(js jetstream.JetStream, name string, rate, seconds int, payload []byte) {
	create(js, name)
	publishOne(js, name, payload)
	n := rate * seconds
	took := make([]time.Duration, n)
	type sent struct {
		number int
		due    time.Time
		future jetstream.PubAckFuture
	}
	queue := make(chan sent, n)
	var all sync.WaitGroup
	all.Add(1)
	go func() { // Acknowledgements come in the order of the stream.
		defer all.Done()
		for one := range queue {
			select {
			case <-one.future.Ok():
			case <-one.future.Err():
				failed.Add(1)
			}
			took[one.number] = time.Since(one.due)
		}
	}()
	began := time.Now()
	for i := range n {
		due := began.Add(time.Duration(float64(i) * 1e9 / float64(rate)))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		future, err := js.PublishAsync(name, payload, jetstream.WithStallWait(callLimit))
		must(err)
		queue <- sent{i, due, future}
	}
	close(queue)
	all.Wait()
	lasted := time.Since(began).Seconds()
	p50, p99 := percentiles(took)
	show("half", "records", float64(n), "rate_per_s", float64(n)/lasted, "p50_ms", p50, "p99_ms", p99)
	remove(js, name)
}

func many(js jetstream.JetStream, name string, topics, n int, payload []byte) {
	began := time.Now()
	names := make([]string, topics)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i)
		create(js, names[i])
	}
	send(js, names, 1, payload)
	created := time.Since(began).Seconds()
	began = time.Now()
	send(js, names, n, payload)
	seconds := time.Since(began).Seconds()
	show("many", "records", float64(n*topics), "rate_per_s", float64(n*topics)/seconds, "created_s", created)
}

func loss(js jetstream.JetStream, name string, size int) {
	create(js, name)
	fmt.Println(`{"kind": "created"}`)
	input := bufio.NewReader(os.Stdin)
	_, _ = input.ReadString('\n')
	var acknowledged atomic.Int64
	futures := make(chan jetstream.PubAckFuture, number("window", 1000))
	go func() { // In order, and nothing counts after the first failure: 0..n-1 were acknowledged.
		for future := range futures {
			select {
			case <-future.Ok():
				if acknowledged.Add(1) == 1 {
					fmt.Println(`{"kind": "first"}`)
				}
			case <-future.Err():
				return
			}
		}
	}()
	go func() {
		for number := uint64(0); ; number++ {
			body := make([]byte, size)
			binary.BigEndian.PutUint64(body, number)
			future, err := js.PublishAsync(name, body, jetstream.WithStallWait(callLimit))
			if err != nil {
				return // The servers are gone.
			}
			futures <- future
		}
	}()
	_, _ = io.Copy(io.Discard, input)
	show("loss", "acknowledged", float64(acknowledged.Load()))
}

func check(js jetstream.JetStream, name string, n int) {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	found, err := js.Stream(limited, name)
	if err != nil {
		if err == jetstream.ErrStreamNotFound {
			fmt.Fprintln(os.Stderr, "nats bench: the stream itself is lost")
			show("check", "lost", float64(n))
			return
		}
		must(err)
	}
	info, err := found.Info(limited)
	must(err)
	fmt.Fprintf(os.Stderr, "nats bench: the stream has %d records\n", info.State.Msgs)
	seen := make([]bool, n)
	read(js, name, int(info.State.Msgs), func(body []byte) {
		if number := binary.BigEndian.Uint64(body); number < uint64(n) {
			seen[number] = true
		}
	})
	lost := 0
	for _, one := range seen {
		if !one {
			lost++
		}
	}
	show("check", "lost", float64(lost))
}

func main() {
	for _, one := range os.Args[1:] {
		name, value, _ := strings.Cut(one, "=")
		given[name] = value
	}
	conn, js := connect()
	defer conn.Close()
	name, n, size := get("name", "bench"), number("n", 100_000), number("size", 100)
	payload := make([]byte, size)
	rand.New(rand.NewSource(1)).Read(payload)
	mode := get("mode", "stream")
	switch mode {
	case "loss":
		loss(js, name, size)
		return
	case "check":
		check(js, name, n)
		return
	}
	for round := range number("rounds", 1) {
		stored := fmt.Sprintf("%s-%d", name, round)
		switch mode {
		case "stream":
			stream(js, stored, n, payload)
		case "latency":
			latency(js, stored, n, payload)
		case "half":
			half(js, stored, number("rate", 10_000), number("seconds", 5), payload)
		case "many":
			many(js, stored, number("topics", 1000), n, payload)
		default:
			must(fmt.Errorf("there is no mode %s", mode))
		}
	}
}
