package upstream

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// grace is how long a program may take to end after SIGTERM.
const grace = 15 * time.Second

// maxTail is how many bytes of a log an error shows.
const maxTail = 4000

// process is a running program. Its output goes to a file.
type process struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
	err       error // set before ended is closed
}

func begin(c Config, name string, flags []string) (*process, error) {
	p := &process{name: name, log: filepath.Join(c.Dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = c.Command(context.Background(), filepath.Join(c.Programs, name), flags...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// An interrupt at the terminal is for the caller, who stops the programs in order. If the caller is killed,
	// they are killed too.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// run starts the program and waits for its end in one thread: Pdeathsig fires when the thread that started the
// program ends.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err == nil {
		p.err = p.cmd.Wait()
		close(p.ended)
	}
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// failure returns the error for a program that ended by itself.
func (p *process) failure() error {
	return fmt.Errorf("%s ended: %w; the end of its log:\n%s", p.name, p.err, p.tail())
}

func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-maxTail):])
}

// stop ends the program. It fails if the program had ended by itself.
func (p *process) stop() error {
	if p.hasEnded() {
		return p.failure()
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case <-p.ended:
		return nil
	case <-late.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("%s did not end within %s", p.name, grace)
	}
}
