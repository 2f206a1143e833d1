package queue

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scheduler serves four calls: ListPlatformQueues, with a queue for each name of queues; ListWorkers, in pages of a
// thousand; KillOperations, for the operations of workers; and TerminateWorkers, which blocks until its caller
// disconnects.
type scheduler struct {
	workers    []worker
	requests   [][]byte
	terminated chan string
	queues     [][]byte
	killed     []string // code and operation
}

func (s *scheduler) serve(t *testing.T) Scheduler {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			var request []byte
			if err := stream.RecvMsg(&request); err != nil {
				return err
			}
			method, _ := grpc.MethodFromServerStream(stream)
			if method == service+"TerminateWorkers" {
				pattern := map[string]string{}
				_ = fields(request, func(_ protowire.Number, content []byte) error { return entry(content, pattern) })
				s.terminated <- pattern[PodKey]
				<-stream.Context().Done()
				return stream.Context().Err()
			}
			answer, err := s.queue(method, request)
			if err != nil || method != service+"ListWorkers" {
				if err == nil {
					err = stream.SendMsg(&answer)
				}
				return err
			}
			from := len(s.requests) * pageSize
			s.requests = append(s.requests, request)
			for _, w := range s.workers[min(from, len(s.workers)):min(from+pageSize, len(s.workers))] {
				state := table(nil, 1, w.id)
				state = message(state, 2, []byte("\x08\x01")) // its timeout
				if w.operation != "" {
					state = message(state, 3, text(nil, 1, w.operation))
				}
				answer = message(answer, 1, state)
			}
			answer = message(answer, 2, []byte("\x10\x05"))
			return stream.SendMsg(&answer)
		}))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); require.NoError(t, <-done) })
	return Scheduler{Address: l.Addr().String()}
}

// queue serves the calls about queues and operations.
func (s *scheduler) queue(method string, request []byte) (answer []byte, err error) {
	switch method {
	case service + "ListPlatformQueues":
		for _, name := range s.queues {
			answer = message(answer, 1, message(message(nil, 1, name), 2, nil))
		}
	case service + "KillOperations":
		var operation, why string
		_ = fields(request, func(n protowire.Number, content []byte) error {
			return fields(content, func(_ protowire.Number, text []byte) error {
				if n == 1 {
					operation = string(text)
				} else {
					why = string(text)
				}
				return nil
			})
		})
		if operation == "ended" {
			return nil, status.Error(codes.NotFound, "Operation not found")
		}
		s.killed = append(s.killed, operation+": "+why)
	}
	return answer, nil
}

// TestLost checks that the actions of lost pods end, and no others, with an error after which clients try again. An
// action that the scheduler does not know any more counts as ended.
func TestLost(t *testing.T) {
	s := &scheduler{terminated: make(chan string, 10), queues: [][]byte{Name{}.encode()}, workers: []worker{
		{map[string]string{PodKey: "gone"}, "a"}, {map[string]string{PodKey: "gone", "thread": "1"}, ""},
		{map[string]string{PodKey: "gone", "thread": "2"}, "ended"}, {map[string]string{PodKey: "here"}, "b"},
		{map[string]string{"node": "gone"}, "c"},
	}}
	c := s.serve(t)
	c.wait, c.linger = time.Minute, 10*time.Millisecond
	n, err := c.Lost(t.Context(), []string{"gone"})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, "gone", <-s.terminated, "no more actions are assigned to it")
	require.Equal(t, []string{"a: The pod gone of the worker disappeared while the action was executing"}, s.killed)
	require.Equal(t, listWorkers(Name{}.encode(), nil), s.requests[0])
	require.Contains(t, string(killOperation("a", codes.Unavailable, "")), "\x08\x0e", "the status's code")

	for range maxQueues {
		s.queues = append(s.queues, nil)
	}
	_, err = c.Lost(t.Context(), []string{"gone"})
	require.ErrorContains(t, err, "more than 1000 queues")
}

func TestBusy(t *testing.T) {
	s := &scheduler{}
	for i := range pageSize + 500 {
		w := worker{id: map[string]string{PodKey: fmt.Sprintf("p%d", i/4), "thread": fmt.Sprint(i % 4)}}
		if i%4 < 2 && i < 40 || i == pageSize+10 {
			w.operation = fmt.Sprint("operation ", i)
		}
		s.workers = append(s.workers, w)
	}
	c := s.serve(t)
	c.wait = time.Minute
	busy, err := c.Busy(t.Context(), Name{
		InstanceNamePrefix: "a", Platform: []buildbarn.PlatformProperty{{Name: "OS", Value: "linux"}},
	})
	require.NoError(t, err)
	require.Len(t, busy, 11)
	require.Equal(t, 2, busy["p0"])
	require.Equal(t, 1, busy["p252"], "of the second page")
	require.Len(t, s.requests, 2)
}

func TestTerminate(t *testing.T) {
	s := &scheduler{terminated: make(chan string, 10)}
	c := s.serve(t)
	c.wait, c.linger = time.Minute, 10*time.Millisecond
	require.NoError(t, c.Terminate(t.Context(), []string{"a"}), "busy workers are not waited for")

	// Calls for different workers are independent.
	s = &scheduler{terminated: make(chan string, 10)}
	c = s.serve(t)
	c.wait, c.linger = time.Minute, time.Minute
	pods := strings.Split("abcdefghij", "")
	calling, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Terminate(calling, pods) }()
	var told []string
	for range pods {
		select {
		case pod := <-s.terminated:
			told = append(told, pod)
		case err := <-done:
			t.Fatal(err)
		}
	}
	end()
	require.ErrorContains(t, <-done, "canceled")
	require.ElementsMatch(t, pods, told)

	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts no connection
	require.NoError(t, err)
	defer silent.Close()
	require.Error(t,
		Scheduler{
			Address: silent.Addr().String(),
			wait:    50 * time.Millisecond,
			linger:  time.Millisecond,
		}.Terminate(t.Context(), pods))
	_, err = Scheduler{Address: "127.0.0.1:1"}.Busy(t.Context(), Name{})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, Scheduler{Address: "127.0.0.1:1"}.Terminate(ctx, []string{"a"}))
}

// TestMoreThanAPage checks that an incomplete list is an error and is not cached.
func TestMoreThanAPage(t *testing.T) {
	page := bytes.Repeat(message(nil, 1, nil), pageSize)
	list, err := parseWorkers(page)
	require.NoError(t, err)
	require.Len(t, list, pageSize)
	_, err = parseWorkers(message(page, 1, nil))
	require.ErrorIs(t, err, errMessage)
}

// FuzzParse: pods send the answers.
func FuzzParse(f *testing.F) {
	f.Add(message(nil, 1, table(nil, 1, map[string]string{"pod": "p"})))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseWorkers(data)
		_, _ = parseQueues(data)
	})
}
