package workers

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/workers/event"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	streams "github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

var queueW = queue.Key{Namespace: "ns", Worker: "w"}

// poster posts messages, with headers as NAME: VALUE.
func poster(t *testing.T, srv *httptest.Server) func(query, text string, headers ...string) (int, http.Header, string) {
	return func(query, text string, headers ...string) (int, http.Header, string) {
		req, err := http.NewRequest(http.MethodPost, srv.URL+"?"+query, strings.NewReader(text))
		require.NoError(t, err)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		res, err := srv.Client().Do(req)
		require.NoError(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		return res.StatusCode, res.Header, string(body)
	}
}

// TestRepetitions checks that a message with the sender's ID of an earlier one is accepted with that one's identity and
// not queued, however it is sent.
func TestRepetitions(t *testing.T) {
	config := queueOf(workers.AtLeastOnce)
	config.Limit = 50
	on := newStreaming(t, config)
	srv, _ := on.serve(nil, t, ann)
	post := poster(t, srv)
	list := func() (n int) { return len(on.queues.messages.List(queueW, "", 0, 100)) }
	results := func(body string) (all []workers.BatchResult) {
		for line := range strings.Lines(body) {
			var r workers.BatchResult
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			all = append(all, r)
		}
		return all
	}
	code, first, _ := post("id=order-1", "one")
	require.Equal(t, http.StatusAccepted, code)
	require.Empty(t, first.Get(workers.HeaderDuplicate))
	code, again, _ := post("", "one", workers.HeaderDedupID+": order-1")
	require.Equal(t, http.StatusAccepted, code)
	require.Equal(t, first.Get(workers.HeaderID), again.Get(workers.HeaderID))
	require.Equal(t, "true", again.Get(workers.HeaderDuplicate))
	require.Equal(t, 1, list())
	require.Equal(t, "order-1", on.queues.messages.List(queueW, "", 0, 1)[0].DedupID)

	event := []string{"Ce-Specversion: 1.0", "Ce-Id: 7", "Ce-Source: /shop"}
	_, first, _ = post("", "event", event...)
	_, again, _ = post("", "event", event...)
	require.Equal(t, first.Get(workers.HeaderID), again.Get(workers.HeaderID))
	_, _, body := post("batch", `[{"id": "7", "source": "/shop", "data": {"a": 1}},
		{"id": "8", "source": "/shop", "data": {"a": 1}}, {"id": "9", "source": "/shop", "data_base64": "YQ=="},
		{"id": "10", "source": "/shop", "datacontenttype": "text/plain", "data": "text"}]`,
		"Content-Type: application/cloudevents-batch+json; charset=utf-8")
	got := results(body)
	require.Len(t, got, 4)
	require.Equal(t, workers.BatchResult{ID: first.Get(workers.HeaderID), Duplicate: true, Code: 202}, got[0])
	for i, text := range []string{`{"a": 1}`, "a", "text"} {
		m, ok := on.queues.messages.Find(queueW, got[i+1].ID)
		require.True(t, ok)
		require.Equal(t, text, string(m.Payload))
		require.False(t, got[i+1].Duplicate)
	}
	require.Equal(t, 5, list())

	_, _, body = post("batch&id=file", "a\nb\n")
	lines := results(body)
	_, _, body = post("batch&id=file", "a\n\nb\nc\n")
	again2 := results(body)
	require.Equal(t, []string{lines[0].ID, lines[1].ID}, []string{again2[0].ID, again2[1].ID})
	require.Equal(t, []bool{true, true, false}, []bool{again2[0].Duplicate, again2[1].Duplicate, again2[2].Duplicate})
	require.Equal(t, 8, list())

	s := streams.New(srv.Client(), srv.URL)
	defer s.Close()
	reply := make(chan streams.Reply, 1)
	for i, id := range []string{"new", "new", "order-1"} {
		_, err := s.Start(t.Context(), streams.Message{ID: id}, false, func(r streams.Reply, err error) {
			if err != nil {
				t.Error(err)
			}
			reply <- r
		})
		require.NoError(t, err)
		require.Equal(t, i > 0, (<-reply).Duplicate)
	}
	require.Equal(t, 9, list())
}

// TestKeys checks that the key of a message gets into its queue, however it is sent.
func TestKeys(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtLeastOnce))
	srv, _ := on.serve(nil, t, ann)
	post := poster(t, srv)
	s := streams.New(srv.Client(), srv.URL)
	defer s.Close()
	for _, send := range []func(){
		func() { post("key=k", "x") },
		func() { post("", "x", workers.HeaderOrderKey+": k") },
		func() { post("", "x", "Ce-Partitionkey: k") },
		func() { post("batch&key=k", "x") },
		func() {
			post("batch", `[{"id": "1", "source": "s", "partitionkey": "k"}]`,
				"Content-Type: application/cloudevents-batch+json")
		},
		func() { require.NoError(t, s.Send(t.Context(), streams.Message{Key: "k"})) },
	} {
		send()
		list := on.queues.messages.List(queueW, "", 0, 10)
		require.Len(t, list, 1)
		require.Equal(t, "k", list[0].OrderKey)
		(<-on.came).Done(workers.Outcome{})
		require.Eventually(t, func() bool { return len(on.queues.messages.List(queueW, "", 0, 10)) == 0 },
			time.Minute, time.Millisecond)
	}
}

// TestBadIdentities checks that what cannot be a message's ID is refused with what to do.
func TestBadIdentities(t *testing.T) {
	on := newStreaming(t, queueOf(workers.AtLeastOnce))
	srv, _ := on.serve(nil, t, ann)
	post := poster(t, srv)
	long := strings.Repeat("x", workers.MaxDedupID+1)
	const events = "Content-Type: application/cloudevents-batch+json"
	for _, bad := range []struct{ query, body, header, text string }{
		{"id=", "x", "", "leave it out, or give one"},
		{"", "x", workers.HeaderDedupID + ": ", "leave it out, or give one"},
		{"id=" + long, "x", "", "send a hash of it"},
		{"id=a%0ab", "x", "", "encode it"},
		{"id=%ff", "x", "", "encode it"},
		{"id=a&wait", "x", "", "leave out id, or wait"},
		{"batch&id=" + long[1:], "x", "", "send a hash of it"},
		{"batch&id=a", `[{"id": "1", "source": "s"}]`, events, "leave out the id of the batch"},
		{"batch", `[{"id": "1"}]`, events, "needs an id and a source"},
		{"batch", `[{"id": "1", "source": "` + long + `"}]`, events, "event 1 of the batch: the id has 259 bytes"},
		{"batch", `{"id": "1"}`, events, "not a JSON array"},
		{"batch", `[{"id": "1", "source": "s"}`, events, "event 2"},
		{"batch", `[]`, events, "no messages"},
		{"batch", `[{"id": "1", "source": "s", "partitionkey": ""}]`, events, "the partitionkey is empty"},
		{"key=", "x", "", "the key is empty: leave it out, or give one"},
		{"", "x", workers.HeaderOrderKey + ": " + long, "the key has 257 bytes"},
		{"", "x", "Ce-Partitionkey: ", "the key is empty"},
		{"key=a%00", "x", "", "the key has control characters"},
		{"key=a&delay=1h", "x", "", "leave out key or delay"},
		{"batch", `[{"id": "1", "source": "s", "datacontenttype": "` + long + `"}]`, events, "at most 256 bytes"},
	} {
		var headers []string
		if bad.header != "" {
			headers = append(headers, bad.header)
		}
		code, _, text := post(bad.query, bad.body, headers...)
		require.Equal(t, http.StatusBadRequest, code, "%+v", bad)
		require.Contains(t, text, bad.text)
	}
	s := streams.New(srv.Client(), srv.URL)
	defer s.Close()
	require.ErrorContains(t, s.Send(t.Context(), streams.Message{ID: long}), "send a hash of it")
	require.ErrorContains(t, s.Send(t.Context(), streams.Message{ID: "a\x00"}), "encode it")
	require.ErrorContains(t, s.Send(t.Context(), streams.Message{Key: long}), "send a hash of it")
	require.ErrorContains(t, s.Send(t.Context(), streams.Message{Key: "a\n"}), "encode it")
	_, err := s.Call(t.Context(), streams.Message{ID: "a"})
	require.ErrorContains(t, err, "leave out id, or wait")
	require.Empty(t, on.queues.messages.List(queueW, "", 0, 100))
	code, _, _ := post("wait&timeout=1ms", "x", "Ce-Id: 1", "Ce-Source: s") // a CloudEvent may wait
	require.Equal(t, http.StatusGatewayTimeout, code)
}

// TestTrace checks which traceparents reach the program (W3C Trace Context, "traceparent Header Field Values").
func TestTrace(t *testing.T) {
	const trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	for _, good := range []string{"00-" + trace + "-" + span + "-01", "cc-" + trace + "-" + span + "-01-later"} {
		require.Equal(t, good, validTrace(good))
	}
	for _, bad := range []string{
		"", "x", "00-" + trace + "-" + span, "00-" + trace + "-" + span + "-01-more", "ff-" + trace + "-" + span + "-01",
		"00-" + strings.Repeat("0", 32) + "-" + span + "-01", "00-" + trace + "-" + strings.Repeat("0", 16) + "-01",
		"00-" + strings.ToUpper(trace) + "-" + span + "-01", "00-" + trace + "-" + span + "-1", "cc-" + trace + "-" + span +
			"-01x", "cc-" + trace + "-" + span + "-01-" + strings.Repeat("x", 128),
	} {
		require.Empty(t, validTrace(bad), bad)
	}
	on := newStreaming(t, queueOf(workers.AtMostOnce))
	srv, _ := on.serve(nil, t, ann)
	post := poster(t, srv)
	good := "00-" + trace + "-" + span + "-01"
	got := func() string {
		d := <-on.came
		defer d.Done(workers.Outcome{})
		return d.Trace
	}
	post("", "x", "Traceparent: "+good, "Tracestate: a=b")
	require.Equal(t, good, got())
	post("", "x", "Traceparent: "+good+"-x")
	require.Empty(t, got())
	post("", "x", "Ce-Traceparent: "+good)
	require.Equal(t, good, got())
	post("batch", `[{"id":"1","source":"s","traceparent":"`+good+`"}]`, "Content-Type: "+event.BatchType)
	require.Equal(t, good, got())
	s := streams.New(srv.Client(), srv.URL)
	defer s.Close()
	for _, trace := range []string{good, strings.Repeat("x", 200)} {
		require.NoError(t, s.Send(t.Context(), streams.Message{Trace: trace}))
		require.Equal(t, validTrace(trace), got())
	}
}
