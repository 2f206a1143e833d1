package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

type casInput struct {
	op    string // get, create, update, delete
	rev   int64
	value string
}

type casOutput struct {
	ok    bool
	rev   int64 // of the write, or of the value read
	value string
}

type casState struct {
	rev   int64 // 0 if the key does not exist
	value string
}

// A key behaves as a register with compare-and-swap under concurrent writes.
func TestLinearizable(t *testing.T) {
	s, _ := open(t, Config{Dir: t.TempDir()})
	const clients, each = 8, 60
	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() {
			var known int64
			for i := range each {
				in := casInput{
					op:    []string{"get", "create", "update", "get", "update", "delete"}[(i+id)%6],
					rev:   known,
					value: fmt.Sprintf("%d.%d", id, i),
				}
				call := time.Since(began).Nanoseconds()
				var out casOutput
				var err error
				switch in.op {
				case "get":
					var kv KV
					kv, err = s.Get(t.Context(), "/registry/r")
					out.rev, out.value = kv.Revision, string(kv.Value)
				case "create":
					out.rev, err = s.Create(t.Context(), "/registry/r", []byte(in.value), 0)
				case "update":
					out.rev, err = s.Update(t.Context(), "/registry/r", []byte(in.value), max(known, 1), 0)
				case "delete":
					out.rev, err = s.Delete(t.Context(), "/registry/r", max(known, 1))
				}
				out.ok = err == nil
				if out.ok {
					known = out.rev
				}
				mu.Lock()
				history = append(history, porcupine.Operation{
					ClientId: id,
					Input:    in,
					Call:     call,
					Output:   out,
					Return:   time.Since(began).Nanoseconds(),
				})
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	model := porcupine.Model{
		Init: func() any { return casState{} },
		Step: func(state, input, output any) (bool, any) {
			st, in, out := state.(casState), input.(casInput), output.(casOutput)
			switch in.op {
			case "get":
				return out.ok == (st.rev != 0) && (!out.ok || out.rev == st.rev && out.value == st.value), st
			case "create":
				if out.ok {
					return st.rev == 0, casState{out.rev, in.value}
				}
				return st.rev != 0, st
			case "update":
				if out.ok {
					return st.rev == in.rev && out.rev > st.rev, casState{out.rev, in.value}
				}
				return st.rev != in.rev || st.rev == 0, st
			default:
				if out.ok {
					return st.rev == in.rev && st.rev != 0, casState{}
				}
				return st.rev != in.rev || st.rev == 0, st
			}
		},
		Equal:             func(a, b any) bool { return a == b },
		DescribeOperation: func(in, out any) string { return fmt.Sprint(in, out) },
	}
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(model, history, 10*time.Minute))
}
