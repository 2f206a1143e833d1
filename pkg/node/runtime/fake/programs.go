package fake

import (
	"context"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// command returns the container's command. The default is busybox's, sh.
func command(s runtime.Spec) []string {
	args := append(append([]string(nil), s.Command...), s.Args...)
	if len(args) == 0 {
		return []string{"sh"}
	}
	return args
}

func (r *Runtime) program(args []string) (Program, error) {
	if p, ok := r.config.Programs[path.Base(args[0])]; ok {
		return p, nil
	}
	if path.Base(args[0]) == "sh" {
		return shell, nil
	}
	if p, ok := builtin[path.Base(args[0])]; ok {
		return p, nil
	}
	return nil, fmt.Errorf("exec: %q: executable file not found in $PATH", args[0])
}

var builtin = map[string]Program{
	"true":  func(context.Context, *Process) int { return 0 },
	"false": func(context.Context, *Process) int { return 1 },
	"echo": func(_ context.Context, p *Process) int {
		fmt.Fprintln(p.Out, strings.Join(p.Args[1:], " "))
		return 0
	},
	"env": func(_ context.Context, p *Process) int {
		fmt.Fprintln(p.Out, strings.Join(p.Env, "\n"))
		return 0
	},
	"cat": func(ctx context.Context, p *Process) int {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(p.Out, p.In)
		}()
		select {
		case <-done:
			return 0
		case <-ctx.Done():
			return 137
		case sig := <-p.Signals:
			return 128 + int(sig)
		}
	},
	"sleep": func(ctx context.Context, p *Process) int {
		seconds, _ := strconv.ParseFloat(p.Args[1], 64)
		timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
		defer timer.Stop()
		select {
		case <-timer.C:
			return 0
		case <-ctx.Done():
			return 137
		case sig := <-p.Signals:
			return 128 + int(sig)
		}
	},
	"oom": func(_ context.Context, p *Process) int { p.OOM(); return 137 },
}

// shell supports -c with commands separated by ";", "exit N", "exec", ">&2", and "trap 'exit N' TERM", which makes
// the next sleep exit with N on a signal.
func shell(ctx context.Context, p *Process) int {
	if len(p.Args) < 3 || p.Args[1] != "-c" {
		return builtin["cat"](ctx, p)
	}
	code, trap := 0, -1
	for _, line := range strings.Split(p.Args[2], ";") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "trap ") {
			trap = 0
			_, _ = fmt.Sscanf(line, "trap 'exit %d'", &trap)
			continue
		}
		q := *p
		if cut, ok := strings.CutSuffix(line, ">&2"); ok {
			line, q.Out = strings.TrimSpace(cut), p.Err
		}
		words := strings.Fields(strings.TrimPrefix(line, "exec "))
		if len(words) == 0 {
			continue
		}
		if words[0] == "exit" {
			if len(words) > 1 {
				code, _ = strconv.Atoi(words[1])
			}
			return code
		}
		program, ok := builtin[words[0]]
		if !ok {
			fmt.Fprintf(p.Err, "sh: %s: not found\n", words[0])
			code = 127
			continue
		}
		q.Args = words
		code = program(ctx, &q)
		if ctx.Err() != nil || code > 128 {
			if trap >= 0 && ctx.Err() == nil {
				return trap
			}
			return code
		}
	}
	return code
}
