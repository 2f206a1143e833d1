package remote

import (
	"context"
	"strings"
	"testing"
	"time"

	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestBlobsAreStoredOnce(t *testing.T) {
	f := newFarm()
	c := f.serve(t)
	caps, err := c.Capabilities(t.Context())
	require.NoError(t, err)
	require.Equal(t, Capabilities{Oldest: "2.0", Newest: "2.3", Execution: true, Batch: 1 << 20}, caps)
	c.Limit(caps)
	blobs := append(numbered(3000, 600), numbered(2, 3<<20)...)
	stored, err := c.Upload(t.Context(), append(blobs, blobs...))
	require.NoError(t, err)
	require.Len(t, stored, 3002)
	require.Equal(t, 3, f.batches, "of at most 1000 blobs")
	require.Equal(t, 2, f.streams, "what is larger than a batch is streamed")
	for _, b := range []Blob{blobs[17], blobs[3001], NewBlob(nil)} {
		got, err := c.Download(t.Context(), b.Digest, 4<<20)
		require.NoError(t, err)
		require.Equal(t, b.Digest, NewBlob(got).Digest)
	}
	stored, err = c.Upload(t.Context(), blobs)
	require.NoError(t, err)
	require.Empty(t, stored, "the second time there is nothing to store")
}

func TestWhatAServerSendsIsChecked(t *testing.T) {
	f := newFarm()
	c := f.serve(t)
	b := NewBlob([]byte("text"))
	_, err := c.Upload(t.Context(), []Blob{b})
	require.NoError(t, err)
	for name, lie := range map[string]func([]byte) []byte{
		"other data": func([]byte) []byte { return []byte("lies") },
		"too little": func(d []byte) []byte { return d[1:] },
		"too much":   func([]byte) []byte { return make([]byte, 100<<20) },
	} {
		f.lie = lie
		_, err := c.Download(t.Context(), b.Digest, 1<<20)
		require.ErrorContains(t, err, "the server sent", name)
	}
	_, err = c.Download(t.Context(), Digest{b.Digest.Hash, 1 << 40}, 1<<20)
	require.ErrorContains(t, err, "larger than 1048576 bytes", "nothing is read")
	for _, d := range []*remoteexecution.Digest{
		nil, {Hash: "../../x", SizeBytes: 1}, {Hash: b.Digest.Hash, SizeBytes: -1},
	} {
		_, err := converted(&remoteexecution.ActionResult{OutputFiles: []*remoteexecution.OutputFile{{Path: "a", Digest: d}}})
		require.ErrorContains(t, err, "a digest that is not SHA-256")
	}
}

func TestAnExecutionSurvivesUnavailableServers(t *testing.T) {
	lost := status.Error(codes.Unavailable, "connection lost")
	for name, tt := range map[string]struct {
		execute           func(f *farm) error // after QUEUED was sent
		wait              func(f *farm, s remoteexecution.Execution_WaitExecutionServer) error
		executions, waits int
	}{
		"the frontend restarts": {
			execute: func(*farm) error { return lost },
			wait: func(f *farm, s remoteexecution.Execution_WaitExecutionServer) error {
				return s.Send(done("op", f.result("a")))
			},
			executions: 1, waits: 1,
		},
		"the scheduler restarts and has forgotten it": {
			execute: func(f *farm) error {
				if f.executions > 1 {
					return nil
				}
				return lost
			},
			wait: func(*farm, remoteexecution.Execution_WaitExecutionServer) error {
				return status.Error(codes.NotFound, "unknown")
			},
			executions: 2, waits: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm()
			f.execute = func(_ *remoteexecution.Action, s remoteexecution.Execution_ExecuteServer) error {
				if err := s.Send(staged("op", remoteexecution.ExecutionStage_QUEUED)); err != nil {
					return err
				}
				if err := tt.execute(f); err != nil {
					return err
				}
				return s.Send(done("op", f.result("a")))
			}
			f.wait = func(s remoteexecution.Execution_WaitExecutionServer) error { return tt.wait(f, s) }
			c := f.serve(t)
			action, blobs, err := Action{Arguments: []string{"true"}}.Blobs()
			require.NoError(t, err)
			_, err = c.Upload(t.Context(), blobs)
			require.NoError(t, err)
			var stages []string
			result, err := c.Execute(t.Context(), action, Execution{Progress: func(s string) { stages = append(stages, s) }})
			require.NoError(t, err)
			require.Positive(t, result.Repeats)
			f.mu.Lock()
			require.Equal(t, []int{tt.executions, tt.waits}, []int{f.executions, f.waits})
			f.mu.Unlock()
			require.Equal(t, "QUEUED", stages[0])
			require.Contains(t, stages[1], "asking again: ")
		})
	}
}

func TestAnExecutionEnds(t *testing.T) {
	f := newFarm()
	f.execute = func(*remoteexecution.Action, remoteexecution.Execution_ExecuteServer) error { return nil }
	c := f.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Execute(ctx, NewBlob([]byte("a")).Digest, Execution{})
	require.Error(t, err, "a server that never has a result")
	f.mu.Lock() // the server may still handle a call that was cancelled with the context
	defer f.mu.Unlock()
	require.Less(t, f.executions, attempts+1)
}

func TestActions(t *testing.T) {
	a := Action{
		Arguments: []string{"sh"},
		Inputs:    map[string][]byte{"a/b/c": []byte("1"), "a/d": []byte("2"), "e": nil},
		Platform:  map[string]string{"x": "1", "a": "2"},
	}
	one, blobs, err := a.Blobs()
	require.NoError(t, err)
	require.Len(t, blobs, 8, "three files, three folders, the command and the action")
	two, _, err := a.Blobs()
	require.NoError(t, err)
	require.Equal(t, one, two, "equal actions have equal digests")
	a.Salt = []byte("x")
	two, _, err = a.Blobs()
	require.NoError(t, err)
	require.NotEqual(t, one, two)
	for _, name := range []string{"", "/etc/passwd", "../x", "a/../../x", ".", "a//b"} {
		_, _, err := Action{Arguments: []string{"sh"}, Inputs: map[string][]byte{name: nil}}.Blobs()
		require.ErrorContains(t, err, "is not a path below", name)
		_, _, err = Action{Arguments: []string{"sh"}, Outputs: []string{name}}.Blobs()
		require.ErrorContains(t, err, "is not a path below", name)
	}
	_, _, err = Action{Arguments: []string{"sh"}, Inputs: map[string][]byte{"a": nil, "a/b": nil}}.Blobs()
	require.ErrorContains(t, err, "both a file and a folder")
	_, _, err = Action{}.Blobs()
	require.ErrorContains(t, err, "needs a command")
	for _, c := range []Config{{}, {Address: "http://x"}, {Address: "x:1", Instance: "a/blobs/b"}} {
		_, err := New(c)
		require.Error(t, err, "%+v", c)
	}
}

func TestSmoke(t *testing.T) {
	noWorker := status.Error(codes.FailedPrecondition, "no worker has this platform")
	for name, tt := range map[string]struct {
		change func(f *farm)
		steps  string
		says   string
	}{
		"a farm that works": {func(*farm) {}, "capabilities upload execute download again", ""},
		"nothing executes":  {func(f *farm) { f.caps.ExecutionCapabilities = nil }, "capabilities", "names no scheduler"},
		"another hash": {
			func(f *farm) { f.caps.CacheCapabilities.DigestFunctions = nil }, "capabilities", "does not support SHA-256",
		},
		"version 3": {
			func(f *farm) { f.caps.LowApiVersion.Major = 3 }, "capabilities", "versions 3.0 to 2.3 of the API, not 2",
		},
		"no worker for it": {func(f *farm) {
			f.execute = func(*remoteexecution.Action, remoteexecution.Execution_ExecuteServer) error { return noWorker }
		}, "capabilities upload execute", "platform {OS=linux}: give"},
		"the output is lost": {
			func(f *farm) { f.lie = func([]byte) []byte { return []byte("x") } }, "capabilities upload execute download",
			"the server sent",
		},
		"the cache keeps naught": {
			func(f *farm) { f.forget = true }, "capabilities upload execute download again",
			"must let it write to the action cache",
		},
		"the command fails": {func(f *farm) {
			f.execute = func(_ *remoteexecution.Action, s remoteexecution.Execution_ExecuteServer) error {
				return s.Send(done("op", &remoteexecution.ExecuteResponse{
					Result: &remoteexecution.ActionResult{ExitCode: 127, StderrRaw: []byte("sh: \x1b[2Jnot found\n")},
				}))
			}
		}, "capabilities upload execute", "ended with exit code 127: sh:  [2Jnot found. It needs /bin/sh"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm()
			tt.change(f)
			var steps []string
			err := Smoke{Platform: map[string]string{"OS": "linux"}, Timeout: time.Minute}.Run(t.Context(), f.serve(t),
				func(s Step) {
					steps = append(steps, s.Name)
					require.NotContains(t, s.Detail, "\x1b", "what a worker says does not reach the terminal as it is")
				})
			require.Equal(t, tt.steps, strings.Join(steps, " "))
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
		})
	}
}
