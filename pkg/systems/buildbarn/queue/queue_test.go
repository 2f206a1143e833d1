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
	"google.golang.org/protobuf/encoding/protowire"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scheduler serves ListWorkers, pageSize workers at a time, and TerminateWorkers, which lasts until the caller cancels.
type scheduler struct {
	workers    []worker
	requests   [][]byte
	terminated chan string
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
			from := len(s.requests) * pageSize
			s.requests = append(s.requests, request)
			var answer []byte
			for _, w := range s.workers[min(from, len(s.workers)):min(from+pageSize, len(s.workers))] {
				state := table(nil, 1, w.id)
				state = message(state, 2, []byte("\x08\x01")) // its timeout
				if w.executing {
					state = message(state, 3, text(nil, 1, "operation"))
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

func TestBusy(t *testing.T) {
	s := &scheduler{}
	for i := range pageSize + 500 {
		s.workers = append(s.workers, worker{
			id:        map[string]string{PodKey: fmt.Sprintf("p%d", i/4), "thread": fmt.Sprint(i % 4)},
			executing: i%4 < 2 && i < 40 || i == pageSize+10,
		})
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

	// The calls run concurrently.
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

	silent, err := net.Listen("tcp", "127.0.0.1:0") // never accepts
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

// TestMoreThanAPage: an answer with more workers than requested is an error.
func TestMoreThanAPage(t *testing.T) {
	page := bytes.Repeat(message(nil, 1, nil), pageSize)
	list, err := parseWorkers(page)
	require.NoError(t, err)
	require.Len(t, list, pageSize)
	_, err = parseWorkers(message(page, 1, nil))
	require.ErrorIs(t, err, errMessage)
}

// FuzzParse fuzzes the parser, because answers come from untrusted pods.
func FuzzParse(f *testing.F) {
	f.Add(message(nil, 1, table(nil, 1, map[string]string{"pod": "p"})))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = parseWorkers(data) })
}
