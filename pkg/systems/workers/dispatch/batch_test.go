package dispatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// batches declares the worker w and readies a pod that gets batches.
func (c *cluster) batches(pod string, b workers.WorkerBatch, change func(*workers.WorkerSpec)) {
	w := c.worker("w", func(s *workers.WorkerSpec) {
		s.Batch = &b
		change(s)
	})
	require.Empty(c.t, workers.Validate(w))
	c.readyWith(pod, workers.QueueOf(w).Annotation())
}

// calls returns the batches since the last take, and the messages of each as ID#ATTEMPT.
func (c *cluster) calls() (list []*workers.Delivery, names []string) {
	list, _ = c.take()
	for _, d := range list {
		var batch struct{ Records []record }
		require.NoError(c.t, json.Unmarshal(d.Payload, &batch))
		var ids []string
		for _, r := range batch.Records {
			ids = append(ids, r.ID+"#"+r.System.Attempts)
		}
		names = append(names, strings.Join(ids, " "))
	}
	return list, names
}

// called expects one batch of these messages.
func (c *cluster) called(names string) *workers.Delivery {
	c.t.Helper()
	list, got := c.calls()
	require.Equal(c.t, []string{names}, got)
	return list[0]
}

func named(ids ...string) workers.Outcome {
	list := make([]map[string]string, len(ids))
	for i, id := range ids {
		list[i] = map[string]string{"itemIdentifier": id}
	}
	text, _ := json.Marshal(map[string]any{"batchItemFailures": list})
	return workers.Outcome{Payload: text, ContentType: "application/json"}
}

// TestBatch checks that the messages of a batch succeed, are delivered again and die each by itself.
func TestBatch(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{Size: 3}, atLeastOnce)
		c.send("1", "2", "3", "4")
		first := c.called("1#1 2#1 3#1")
		require.Equal(t, 3, c.queues.Depth(key).InFlight)
		freed := false
		o := named("2")
		o.Release = func() { freed = true }
		first.Done(o)
		require.True(t, freed)
		second := c.called("4#1")
		require.Equal(t, queue.Delayed, c.queues.List(key, "", 0, 1)[0].State)
		require.Equal(t, "HandlerFailed: the program named the message in batchItemFailures",
			c.queues.List(key, "", 0, 1)[0].Error)
		second.Done(handled)
		time.Sleep(firstDelay)
		second = c.called("2#2")
		c.send("5")
		second.Done(named("2"))
		c.called("5#1").Done(handled)
		time.Sleep(time.Second)
		c.called("2#3").Done(named("2"))
		c.calls()
		depth := c.queues.Depth(key)
		require.Equal(t, []int{0, 0, 1}, []int{depth.Waiting, depth.InFlight, depth.Dead})
		n := c.state(key).counts
		require.Equal(t, []uint64{7, 2, 4, 1}, []uint64{n.delivered, n.redelivered, n.succeeded, n.failed})
		require.Empty(t, c.state(key).flights)
	})
}

// TestAnswersToABatch checks which answers mean success, as AWS documents them for ReportBatchItemFailures.
func TestAnswersToABatch(t *testing.T) {
	for answer, want := range map[string]string{
		``: "", ` `: "", `null`: "", `{}`: "", `"done"`: "", `{"statusCode": 200}`: "", `{"batchItemFailures": null}`: "",
		`{"batchItemFailures": []}`: "", `{"batchItemFailures": [{"itemIdentifier": "2"}]}`: "2",
		`{"batchItemFailures": [{"itemIdentifier": "2"}, {"itemIdentifier": "2"}, {"itemIdentifier": "1"}]}`: "12",
		`done`: "all", `{`: "all", `["1"]`: "all", `{"batchItemFailures": {}}`: "all", `{"batchItemFailures": ["1"]}`: "all",
		`{"batchItemFailures": [{"itemIdentifier": ""}]}`: "all", `{"batchItemFailures": [{"itemIdentifier": null}]}`: "all",
		`{"batchItemFailures": [{"itemIdentifier": 1}]}`: "all", `{"batchItemFailures": [{"messageId": "1"}]}`: "all",
		`{"batchItemFailures": [{"itemIdentifier": "1"}, {"itemIdentifier": "other"}]}`: "all",
	} {
		failed := map[string]bool{"1": false, "2": false}
		got := "all"
		if readAnswer([]byte(answer), failed) == nil {
			got = ""
			for _, id := range []string{"1", "2"} {
				if failed[id] {
					got += id
				}
			}
		}
		require.Equal(t, want, got, answer)
	}
}

// TestBatchFailsAsAWhole checks the outcomes that concern all messages of a batch.
func TestBatchFailsAsAWhole(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{}, atLeastOnce)
		c.send("1", "2")
		c.called("1#1 2#1").Done(workers.Outcome{Failure: workers.NoReceiver, Untouched: true})
		_, names := c.calls()
		require.Empty(t, names)
		time.Sleep(restTime)
		c.called("1#1 2#1").Done(workers.Outcome{Payload: []byte("poison")})
		time.Sleep(firstDelay)
		d := c.called("1#2 2#2")
		require.Contains(t, c.queues.List(key, "", 0, 1)[0].Error, "HandlerFailed: InvalidBatchAnswer: the answer is not")
		d.Done(workers.Outcome{Failure: workers.ReceiverLost, Text: "gone"})
		c.called("1#3 2#3").Done(workers.Outcome{Failure: workers.HandlerTimeout, Text: "late"})
		c.calls()
		require.Equal(t, queue.Depth{Dead: 2}, c.queues.Depth(key))
		require.Equal(t, "HandlerTimeout: late", c.queues.List(key, "", 0, 1)[0].Error)
	})
}

// TestBatchAtMostOnce checks that a failed message does not come again, and is counted.
func TestBatchAtMostOnce(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{}, func(*workers.WorkerSpec) {})
		c.send("1", "2", "3")
		c.called("1#1 2#1 3#1").Done(named("3", "1"))
		_, names := c.calls()
		require.Empty(t, names)
		require.Empty(t, c.queues.Keys())
		require.EqualValues(t, 2, c.state(key).counts.dropped)
	})
}

// TestBatchesCountAsConcurrency checks that a pod has as many batches as its concurrency, and that a batch is filled
// before another pod gets one.
func TestBatchesCountAsConcurrency(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{Size: 2}, func(s *workers.WorkerSpec) { s.Concurrency = 2 })
		c.batches("b", workers.WorkerBatch{Size: 2}, func(s *workers.WorkerSpec) { s.Concurrency = 2 })
		var ids []string
		for i := range 9 {
			ids = append(ids, fmt.Sprint(i))
		}
		c.send(ids...)
		list, names := c.calls()
		require.ElementsMatch(t, []string{"0#1 1#1", "2#1 3#1", "4#1 5#1", "6#1 7#1"}, names)
		pods := map[string]int{}
		for _, d := range list {
			pods[d.Pod]++
		}
		require.Equal(t, map[string]int{"a": 2, "b": 2}, pods)
		list[0].Done(handled)
		c.called("8#1")
	})
}

// TestKeysInBatches checks that a batch has the first message of each key, and that a failed one is not overtaken.
func TestKeysInBatches(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{}, atLeastOnce)
		c.batches("b", workers.WorkerBatch{}, atLeastOnce)
		var list []Message
		for _, id := range []string{"x1", "x2", "y1", "x3", "y2"} {
			list = append(list, Message{Message: queue.Message{ID: id, OrderKey: id[:1], DedupID: "d" + id}})
		}
		for _, err := range c.Send(key, workers.QueueOf(c.state(key).worker), list)() {
			require.NoError(t, err)
		}
		d := c.called("x1#1 y1#1")
		require.Contains(t, string(d.Payload), `"MessageGroupId":"x","MessageDeduplicationId":"dx1"`)
		d.Done(named("x1"))
		c.called("y2#1").Done(handled)
		time.Sleep(firstDelay)
		c.called("x1#2").Done(handled)
		c.called("x2#1").Done(handled)
		c.called("x3#1").Done(handled)
		synctest.Wait()
		require.Zero(t, c.queues.Depth(key))
	})
}

// TestWindow checks that messages wait for a fuller batch, but not longer than the window, and not with a sender.
func TestWindow(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{Size: 3, WindowSeconds: 10}, atLeastOnce)
		none := func() {
			_, names := c.calls()
			require.Empty(t, names)
		}
		began := time.Now()
		c.send("1")
		time.Sleep(9 * time.Second)
		c.send("2")
		none()
		time.Sleep(time.Second)
		c.called("1#1 2#1").Done(handled)
		c.send("3", "4")
		time.Sleep(5 * time.Second)
		none()
		c.send("5", "6") // it is full
		d := c.called("3#1 4#1 5#1")
		time.Sleep(10 * time.Second)
		d.Done(handled)
		c.called("6#1").Done(handled) // waited for the pod
		require.Equal(t, 25*time.Second, time.Since(began))
		c.send("7")
		got := c.call("8", time.Minute)
		c.called("7#1 8#1").Done(named("7"))
		require.Equal(t, Outcome{Pod: "a", Attempts: 1}, <-got, "an empty reply")
		time.Sleep(9 * time.Second)
		none()
		time.Sleep(time.Second + firstDelay)
		c.called("7#2").Done(handled)

		c.worker("w", func(s *workers.WorkerSpec) { atLeastOnce(s); s.Batch = &workers.WorkerBatch{Size: 3} })
		large := strings.Repeat("x", workers.MaxPayload)
		var list []Message
		for i := range 2 * workers.MaxCall / workers.MaxPayload {
			list = append(list, Message{Message: queue.Message{ID: fmt.Sprint("large", i), Payload: []byte(large)}})
		}
		c.readyWith("b", `{"worker": "w", "batch": {"size": 100, "windowSeconds": 10}}`)
		for _, err := range c.Send(key, workers.QueueOf(c.state(key).worker), list)() {
			require.NoError(t, err)
		}
		calls, _ := c.calls()
		for _, d := range calls {
			require.LessOrEqual(t, len(d.Payload), workers.MaxCall)
			require.Greater(t, len(d.Payload), workers.MaxCall/3)
		}
		require.Len(t, calls, 2, "the batches are full by their size")
	})
}

// TestSendersOfABatch checks that each sender that waits gets its own outcome, and that one may go meanwhile.
func TestSendersOfABatch(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("a", workers.WorkerBatch{}, func(*workers.WorkerSpec) {})
		c.send("0")
		d := c.called("0#1")
		one, two, three := c.call("1", time.Minute), c.call("2", time.Minute), c.call("3", time.Second)
		d.Done(handled)
		d = c.called("1#1 2#1 3#1")
		time.Sleep(time.Second)
		require.Equal(t, workers.HandlerTimeout, (<-three).Failure)
		d.Done(named("2"))
		synctest.Wait()
		require.Equal(t, Outcome{Pod: "a", Attempts: 1}, <-one)
		o := <-two
		require.Equal(t, workers.HandlerFailed, o.Failure)
		require.Equal(t, "a", o.Pod)
		require.Empty(t, c.state(key).waits)
		require.Empty(t, c.queues.Keys())
	})
}

// TestBatchForAnUnreachableNode checks that its messages wait again when its node cannot be reached.
func TestBatchForAnUnreachableNode(t *testing.T) {
	run(t, func(c *cluster) {
		c.batches("far", workers.WorkerBatch{}, atLeastOnce)
		far := c.readyWith("gone", workers.QueueOf(c.state(key).worker).Annotation())
		c.pod(far, false, true)
		for _, p := range c.state(key).pods {
			p.node = "elsewhere"
		}
		c.send("1", "2")
		_, names := c.calls()
		require.Empty(t, names)
		require.Equal(t, 2, c.queues.Depth(key).Waiting)
		c.batches("a", workers.WorkerBatch{}, atLeastOnce)
		c.called("1#1 2#1").Done(handled)
	})
}

// TestRecords checks the forms of messages in a batch.
func TestRecords(t *testing.T) {
	at := time.UnixMilli(1234567890123)
	m := queue.Message{
		ID: "1", Payload: []byte(`{"a": "<ü>"}`), ContentType: "application/json", Trace: "t", OrderKey: "k", Arrived: at,
		Attempts: 2, DeadLetter: "bad",
	}
	binary := queue.Message{ID: "2", Payload: []byte{0xff}, Arrived: at, Attempts: 2}
	body := func(push bool) (string, string) {
		c := &call{push: push, key: key}
		require.True(t, c.add(&m))
		require.True(t, c.add(&binary))
		text, contentType := c.end()
		return string(text), contentType
	}
	text, contentType := body(false)
	require.Equal(t, "application/json", contentType)
	const common = `"eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:w",
		"awsRegion": "us-east-1", "attributes": {"ApproximateReceiveCount": "2", "SentTimestamp": "1234567890123",
		"SenderId": "coracle", "ApproximateFirstReceiveTimestamp": "1234567890123"`
	require.JSONEq(t, `{"Records": [
		{"messageId": "1", "receiptHandle": "1-2", "body": "{\"a\": \"<ü>\"}",
		 "md5OfBody": "a5aa69626a0b4229f8d6e8803d23a7a2", `+common+`, "MessageGroupId": "k"},
		 "messageAttributes": {"Content-Type": {"stringValue": "application/json", "dataType": "String"},
		  "traceparent": {"stringValue": "t", "dataType": "String"},
		  "Coracle-Dead-Letter": {"stringValue": "bad", "dataType": "String"}}},
		{"messageId": "2", "receiptHandle": "2-2", "body": "/w==", "md5OfBody": "4f62884dacaff2ca74aafd10a7f5a7ae",
		 `+common+`}, "messageAttributes": {"Content-Encoding": {"stringValue": "base64", "dataType": "String"}}}]}`, text)
	require.Contains(t, text, "<ü>", "not escaped")

	text, contentType = body(true)
	require.Equal(t, event.BatchType, contentType)
	const attributes = `"specversion": "1.0", "source": "/apis/workers.coracle.dev/namespaces/ns/workers/w",
		"type": "dev.coracle.message", "time": "2009-02-13T23:31:30.123Z", "attempt": 2`
	require.JSONEq(t, `[{"id": "1", "datacontenttype": "application/json", "data": {"a": "<ü>"}, "partitionkey": "k",
		"traceparent": "t", "deadletter": "bad", `+attributes+`}, {"id": "2", "data_base64": "/w==", `+attributes+`}]`, text)
	var list []event.Event
	require.NoError(t, json.Unmarshal([]byte(text), &list))
	payload, _ := list[0].Payload()
	require.JSONEq(t, string(m.Payload), string(payload))

	c := &call{key: key}
	worst := queue.Message{ID: "1", Payload: make([]byte, workers.MaxPayload), OrderKey: strings.Repeat("\x01", 256)}
	require.True(t, c.add(&worst), "a message that alone has more than 6 MiB as JSON is a batch")
	require.False(t, c.add(&m))
	all, _ := c.end()
	require.LessOrEqual(t, len(all), workers.MaxDelivery)
	require.True(t, json.Valid(all))
}
