// Package function has the built-in functions of Workers: echo, calculator, forward and aggregate. The image
// coracle/worker serves them.
package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/coracle-dev/coracle/pkg/systems/workers/worker"
)

// Config configures a function.
type Config struct {
	Parameters map[string]string
	// Log gets a line for each message.
	Log io.Writer
	// Send sends a message to pod/NAME or service/NAME; worker.Send if nil.
	Send func(ctx context.Context, target string, payload []byte) error
}

// New returns the handler of a built-in function.
func New(name string, c Config) (worker.Handler, error) {
	if c.Send == nil {
		c.Send = worker.Send
	}
	switch name {
	case "echo":
		return c.echo, nil
	case "calculator":
		return c.calculator, nil
	case "forward":
		return c.forward, nil
	case "aggregate":
		return c.aggregate()
	}
	return nil, fmt.Errorf("there is no function %q: choose echo, calculator, forward or aggregate", name)
}

func (c Config) logf(format string, args ...any) { fmt.Fprintf(c.Log, format+"\n", args...) }

// echo returns the message, after the prefix if one is set.
func (c Config) echo(_ context.Context, m *worker.Message) ([]byte, error) {
	reply := m.Payload
	if prefix := c.Parameters["prefix"]; prefix != "" {
		reply = append([]byte(prefix+": "), m.Payload...)
	}
	c.logf("echo: %.200q", reply)
	return reply, nil
}

// calculator computes {"operation": "sum", "operands": [1, 2]}.
func (c Config) calculator(_ context.Context, m *worker.Message) ([]byte, error) {
	var in struct {
		Operation string    `json:"operation"`
		Operands  []float64 `json:"operands"`
	}
	if err := json.Unmarshal(m.Payload, &in); err != nil {
		return nil, fmt.Errorf(`the message is not like {"operation": "sum", "operands": [1, 2]}: %w`, err)
	}
	var result float64
	switch in.Operation {
	case "sum", "average":
		for _, v := range in.Operands {
			result += v
		}
		if in.Operation == "average" && len(in.Operands) > 0 {
			result /= float64(len(in.Operands))
		}
	case "product":
		result = 1
		for _, v := range in.Operands {
			result *= v
		}
	default:
		return nil, fmt.Errorf("unknown operation %.40q: sum, product or average", in.Operation)
	}
	c.logf("calculator: %s of %d operands = %v", in.Operation, len(in.Operands), result)
	return json.Marshal(result)
}

// forward transforms a text, sends it to another worker, and returns it.
func (c Config) forward(ctx context.Context, m *worker.Message) ([]byte, error) {
	text := string(m.Payload)
	switch op := c.Parameters["operation"]; op {
	case "uppercase":
		text = strings.ToUpper(text)
	case "lowercase":
		text = strings.ToLower(text)
	case "reverse":
		runes := []rune(text)
		slices.Reverse(runes)
		text = string(runes)
	case "", "none":
	default:
		return nil, fmt.Errorf("unknown operation %.40q: uppercase, lowercase, reverse or none", op)
	}
	to := c.Parameters["forward_to"]
	c.logf("forward: %.200q -> %.200q, to %q", m.Payload, text, to)
	if to == "" {
		return []byte(text), nil
	}
	if strings.Contains(to, "/") {
		return []byte(text), c.Send(ctx, to, []byte(text))
	}
	// A plain name means a pod or, if there is no such pod, a service.
	err := c.Send(ctx, "pod/"+to, []byte(text))
	var failed *worker.SendError
	if errors.As(err, &failed) && (failed.Code == http.StatusNotFound || failed.Code == http.StatusForbidden) {
		err = c.Send(ctx, "service/"+to, []byte(text))
	}
	return []byte(text), err
}

// aggregate collects messages and reports each full window of them.
func (c Config) aggregate() (worker.Handler, error) {
	window := 5
	if text := c.Parameters["window_size"]; text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 1000 {
			return nil, errors.New("window_size must be between 1 and 1000")
		}
		window = n
	}
	var mu sync.Mutex
	var list []string
	return func(_ context.Context, m *worker.Message) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		list = append(list, string(m.Payload))
		c.logf("aggregate: %.200q (%d of %d)", m.Payload, len(list), window)
		if len(list) < window {
			return json.Marshal(map[string]any{"count": len(list)})
		}
		report := map[string]any{"count": len(list), "messages": list, "sample": list[0]}
		list = nil
		out, err := json.Marshal(report)
		c.logf("aggregate: report %.1000s", out)
		return out, err
	}, nil
}
