package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/buildbarn/check/protocol"
)

// patience is for a process that does not get the processor.
const patience = 5 * time.Minute

// run runs the program in an executable file on a request, and returns the first answer with a problem; one without if there is none. An error says
// nothing about the files: the process could not be started, or was killed by others.
func run(ctx context.Context, program *os.File, r protocol.Request) (a protocol.Answer, err error) {
	if n := len(r.Mains); n == 0 || n > protocol.MaxMains {
		return a, fmt.Errorf("%d files to check are none, or more than %d", n, protocol.MaxMains)
	}
	in, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The file needs no name: the new process opens its own descriptor of it.
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()))
	cmd.Args, cmd.Dir, cmd.Env = []string{"coracle-buildbarn-check"}, "/", []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}
	out, complaint := capped{limit: len(r.Mains) * maxAnswer}, capped{limit: 4 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaint
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return a, err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return a, fmt.Errorf("checking %s: %w", r.Mains[0].File, context.Cause(ctx))
	}
	answers := json.NewDecoder(&out.kept)
	for _, m := range r.Mains {
		a = protocol.Answer{}
		if answers.Decode(&a) != nil { // it did not get that far
			if reason, ok := excess(cmd.ProcessState, complaint.kept.String()); ok {
				return protocol.Answer{Problem: m.File + ": " + reason}, nil
			}
			return a, errors.Join(fmt.Errorf("coracle-buildbarn-check ended: %s", strings.TrimSpace(complaint.kept.String())), err)
		}
		if a.Problem != "" {
			return a, nil
		}
	}
	return a, nil
}

// maxAnswer bounds an answer.
const maxAnswer = 64 << 10

// excess says which limit a process exceeded, from how it ended.
func excess(state *os.ProcessState, complaint string) (string, bool) {
	switch {
	case strings.Contains(complaint, "stack exceeds") || strings.Contains(complaint, "stack overflow"):
		return "it is nested too deep", true
	case strings.Contains(complaint, "out of memory") || strings.Contains(complaint, "cannot allocate memory") || strings.Contains(complaint, "failed to create new OS thread"):
		return fmt.Sprintf("evaluating it takes more than %d MiB of memory", protocol.MemoryBytes>>20), true
	case state.ExitCode() == protocol.Exceeded || state.UserTime()+state.SystemTime() > protocol.ProcessorSeconds*time.Second:
		return fmt.Sprintf("evaluating it takes more than %d s of processor time", protocol.ProcessorSeconds), true
	}
	return "", false
}

// capped keeps the beginning of what is written to it, and takes the rest without keeping it.
type capped struct {
	kept  bytes.Buffer // not embedded: io.Copy would use its ReadFrom, which has no limit
	limit int
}

func (c *capped) Write(p []byte) (int, error) {
	if room := c.limit - c.kept.Len(); room > 0 {
		c.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
