package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// streams prints how many messages a second one writer adds to a JetStream stream if each group of them is one atomic
// batch, with and without a sync to disk before the acknowledgement. The server is in this process.
func streams(length time.Duration, payload []byte) error {
	for _, synced := range []bool{false, true} {
		if err := stream(synced, length, payload); err != nil {
			return err
		}
	}
	return nil
}

func stream(synced bool, length time.Duration, payload []byte) error {
	dir, err := os.MkdirTemp("", "bench-nats-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, SyncAlways: synced,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(5 * time.Second) {
		return errors.New("the NATS server did not start")
	}
	c, err := nats.Connect(s.ClientURL())
	if err != nil {
		return err
	}
	defer c.Close()
	js, err := jetstream.New(c)
	if err != nil {
		return err
	}
	if _, err = js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "queue", Subjects: []string{"queue.>"}, MaxMsgsPerSubject: 1, AllowAtomicPublish: true,
	}); err != nil {
		return err
	}
	for _, size := range []int{1, 32, 256} {
		n, start := 0, time.Now()
		for time.Since(start) < length {
			if err := publish(c, n, size, payload); err != nil {
				return err
			}
			n += size
		}
		rate := float64(n) / time.Since(start).Seconds()
		fmt.Printf("JetStream, synced: %-5v groups of %3d: %6.0f messages/s\n", synced, size, rate)
	}
	return nil
}

// publish adds the messages from n on as one batch, and returns when the stream has them.
func publish(c *nats.Conn, n, size int, payload []byte) error {
	id := fmt.Sprintf("%d-%d", size, n)
	for i := 1; ; i++ {
		m := nats.NewMsg(fmt.Sprintf("queue.%d.%d", size, n+i))
		m.Data = payload
		if size > 1 {
			m.Header.Set("Nats-Batch-Id", id)
			m.Header.Set("Nats-Batch-Sequence", strconv.Itoa(i))
		}
		if i < size {
			if err := c.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		if size > 1 {
			m.Header.Set("Nats-Batch-Commit", "1")
		}
		return acknowledged(c.RequestMsg(m, 10*time.Second))
	}
}

func acknowledged(m *nats.Msg, err error) error {
	if err != nil {
		return err
	}
	var ack struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return err
	}
	if ack.Error != nil {
		return errors.New(ack.Error.Description)
	}
	return nil
}
