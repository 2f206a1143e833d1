package userns

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// patience limits each step of the process, which normally takes milliseconds.
const patience = 10 * time.Second

type process struct {
	pid   int
	cmd   *exec.Cmd
	input io.Closer
}

func (p *process) end() {
	_ = p.input.Close()
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// start runs coracle-shim, which creates the namespaces: a multi-threaded process like this one cannot create a user
// namespace.
func start(program string, r Range, arguments ...string) (_ *process, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a user namespace: %w", err)
		}
	}()
	cmd := exec.Command(program, append([]string{"namespaces", strconv.FormatUint(uint64(r.First), 10)}, arguments...)...)
	cmd.Env, cmd.WaitDelay = []string{}, patience
	var failure bytes.Buffer
	cmd.Stderr = &failure
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	answers, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, input.Close())
	}
	defer answers.Close()
	cmd.Stdout = theirs
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return nil, errors.Join(err, input.Close())
	}
	p := &process{pid: cmd.Process.Pid, cmd: cmd, input: input}
	_ = answers.SetReadDeadline(time.Now().Add(patience))
	err = answered(answers)
	if err == nil {
		err = p.mapIDs(r)
	}
	if err == nil {
		_, err = input.Write([]byte{0})
	}
	if err == nil {
		err = answered(answers)
	}
	if err != nil {
		p.end()
		if text := strings.TrimSpace(failure.String()); text != "" {
			err = errors.New(text)
		}
		return nil, err
	}
	return p, nil
}

// answered waits for the byte that signals that the process has completed a step.
func answered(r io.Reader) error {
	_, err := io.ReadFull(r, make([]byte, 1))
	return err
}

// mapIDs writes the ID mapping of the process's user namespace, which only a process outside it can do.
func (p *process) mapIDs(r Range) error {
	line := fmt.Appendf(nil, "0 %d %d\n", r.First, r.Count)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", p.pid, file), line, 0); err != nil {
			return err
		}
	}
	return nil
}
