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

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
)

// patience bounds the wait for a process on a busy machine.
const patience = 5 * time.Minute

// run runs the program in an executable file on a request, and returns the answers up to the first with a problem. An
// error says nothing about the files: the process could not be started, or something else killed it.
func run(ctx context.Context, program *os.File, r protocol.Request) ([]protocol.Answer, error) {
	if n := len(r.Mains); n == 0 || n > protocol.MaxMains {
		return nil, fmt.Errorf("there are %d files to check: 1 to %d are allowed", n, protocol.MaxMains)
	}
	in, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The file needs no name: the new process opens its own descriptor for it.
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/self/fd/%d", program.Fd()))
	cmd.Args, cmd.Dir, cmd.Env = []string{"coracle-buildbarn-check"}, "/", []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}
	out, complaint := bounded.NewBuffer(len(r.Mains)*maxAnswer), bounded.NewBuffer(4<<10)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, complaint
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("checking %s: %w", r.Mains[0].File, context.Cause(ctx))
	}
	answers, decoder := []protocol.Answer{}, json.NewDecoder(bytes.NewReader(out.Bytes()))
	for _, m := range r.Mains {
		var a protocol.Answer
		if decoder.Decode(&a) != nil { // the process ended before this answer
			if reason, ok := excess(cmd.ProcessState, complaint.String()); ok {
				return append(answers, protocol.Answer{Problem: m.File + ": " + reason}), nil
			}
			return nil, errors.Join(fmt.Errorf("coracle-buildbarn-check ended: %s", strings.TrimSpace(complaint.String())), err)
		}
		if answers = append(answers, a); a.Problem != "" {
			break
		}
	}
	return answers, nil
}

const maxAnswer = 64 << 10 // a problem, or protocol.MaxFactsBytes and MaxUsedBytes, and JSON's overhead

// excess returns which limit a process exceeded, judged by how it ended. ok is false for other failures, such as a
// thread that could not be created: these say nothing about the files.
func excess(state *os.ProcessState, complaint string) (string, bool) {
	switch {
	case strings.Contains(complaint, "stack exceeds") || strings.Contains(complaint, "stack overflow"):
		return "nested too deeply", true
	case strings.Contains(complaint, "out of memory") || strings.Contains(complaint, "runtime: cannot allocate memory"):
		return fmt.Sprintf("evaluating it takes more than %d MiB of memory", protocol.MemoryBytes>>20), true
	case state.ExitCode() == protocol.Exceeded ||
		state.UserTime()+state.SystemTime() > protocol.ProcessorSeconds*time.Second:
		return fmt.Sprintf("evaluating it takes more than %d s of processor time", protocol.ProcessorSeconds), true
	}
	return "", false
}
