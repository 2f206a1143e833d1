package function

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

func TestFunctions(t *testing.T) {
	for name, c := range map[string]struct {
		function   string
		parameters map[string]string
		messages   []string
		reply, err string // of the last message
	}{
		"echo": {function: "echo", messages: []string{"a"}, reply: "a"},
		"echo, prefix": {
			function: "echo", parameters: map[string]string{"prefix": "E"}, messages: []string{"a"}, reply: "E: a",
		},
		"sum": {
			function: "calculator", messages: []string{`{"operation": "sum", "operands": [1, 2, 3.5]}`}, reply: "6.5",
		},
		"product": {
			function: "calculator", messages: []string{`{"operation": "product", "operands": [5, 6]}`}, reply: "30",
		},
		"average": {
			function: "calculator", messages: []string{`{"operation": "average", "operands": [10, 20]}`}, reply: "15",
		},
		"average of no":  {function: "calculator", messages: []string{`{"operation": "average"}`}, reply: "0"},
		"operation":      {function: "calculator", messages: []string{`{"operation": "x"}`}, err: "unknown operation"},
		"no calculation": {function: "calculator", messages: []string{`x`}, err: "the message is not like"},
		"uppercase": {
			function: "forward", parameters: map[string]string{"operation": "uppercase"}, messages: []string{"äb"}, reply: "ÄB",
		},
		"reverse": {
			function: "forward", parameters: map[string]string{"operation": "reverse"}, messages: []string{"äb"}, reply: "bä",
		},
		"forward": {
			function: "forward", parameters: map[string]string{"operation": "x"}, messages: []string{"a"},
			err: "unknown operation",
		},
		"aggregate": {
			function: "aggregate", parameters: map[string]string{"window_size": "2"}, messages: []string{"a"},
			reply: `{"count":1}`,
		},
		"a window": {
			function: "aggregate", parameters: map[string]string{"window_size": "2"}, messages: []string{"a", "b"},
			reply: `{"count":2,"messages":["a","b"],"sample":"a"}`,
		},
		"the next": {
			function: "aggregate", parameters: map[string]string{"window_size": "2"}, messages: []string{"a", "b", "c"},
			reply: `{"count":1}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := New(c.function, Config{Parameters: c.parameters, Log: io.Discard})
			require.NoError(t, err)
			var reply []byte
			for _, m := range c.messages {
				reply, err = h(t.Context(), &worker.Message{Payload: []byte(m)})
			}
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.reply, string(reply))
		})
	}
	_, err := New("x", Config{})
	require.Error(t, err)
	_, err = New("aggregate", Config{Parameters: map[string]string{"window_size": "0"}})
	require.Error(t, err)
}

// TestForwardFindsItsTarget checks that a plain name is a pod or, if no such pod exists, a service.
func TestForwardFindsItsTarget(t *testing.T) {
	var sent []string
	h, err := New("forward", Config{
		Parameters: map[string]string{"forward_to": "next"}, Log: io.Discard,
		Send: func(_ context.Context, target string, _ []byte) error {
			sent = append(sent, target)
			if target == "pod/next" {
				return &worker.SendError{Code: 404}
			}
			return nil
		},
	})
	require.NoError(t, err)
	_, err = h(t.Context(), &worker.Message{Payload: []byte("x")})
	require.NoError(t, err)
	require.Equal(t, []string{"pod/next", "service/next"}, sent)
}
