package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// reportVariable names the file descriptor to which a background process writes its start-up progress, one
// socket.Event a line.
const reportVariable = "CORACLE_REPORT_FD"

// logFile is the log of the background process, in the data directory. At maxLog bytes its contents move to logFile.1.
const (
	logFile = "coracle.log"
	maxLog  = 16 << 20
)

// quietStart is the time without an event of a start after which the user learns how to find out why. A node cannot
// register on a full disk, for example.
const quietStart = 10 * time.Second

// Start runs child, a `coracle server` with the same options, in the background, and returns when its node is
// Ready. If a process already runs, Start returns its status. If Start returns an error of the child, the child has
// exited. If ctx ends first, the child gets SIGTERM. Two goroutines call progress.
func Start(ctx context.Context, c config.Config, child *exec.Cmd, progress func(socket.Event)) (socket.Status, error) {
	_, statErr := os.Stat(c.DataDir)
	dirErr := os.MkdirAll(c.DataDir, 0o700) // needed for the lock; preflight's errors take precedence
	if dirErr == nil {
		unlock, err := lockForStart(ctx, c.DataDir, func() {
			progress(socket.Event{Message: "waiting for another start, stop or delete of this cluster"})
		})
		if err != nil {
			return socket.Status{}, err
		}
		defer unlock()
		if errors.Is(statErr, fs.ErrNotExist) {
			defer removeUnused(c.DataDir)
		}
	}
	status, err := socket.NewClient(c.RunDir).Status(ctx)
	if err == nil {
		return status, ownedBy(c, status.DataDir, status.PID)
	}
	if !errors.Is(err, socket.ErrNotRunning) {
		return status, err
	}
	if err := checkRunDir(ctx, c); err != nil {
		return status, err
	}
	if err := errors.Join(preflight(c, true, true), dirErr); err != nil {
		return status, err
	}
	return startChild(ctx, c, child, progress)
}

// removeUnused removes a data directory that this start has made, if it failed before anything was written.
func removeUnused(dir string) {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) == 1 && entries[0].Name() == startLock {
		_ = os.Remove(filepath.Join(dir, startLock))
		_ = os.Remove(dir)
	}
}

// startChild starts the background process and reads its reports until its node is Ready.
func startChild(ctx context.Context, c config.Config, child *exec.Cmd,
	progress func(socket.Event)) (status socket.Status, err error) {
	log, err := openLog(filepath.Join(c.DataDir, logFile))
	if err != nil {
		return status, err
	}
	defer log.Close()
	reports, pipe, err := os.Pipe()
	if err != nil {
		return status, err
	}
	defer reports.Close()
	child.Stdout, child.Stderr = log, log
	child.ExtraFiles = []*os.File{pipe}
	child.Env = append(os.Environ(), reportVariable+"=3")
	child.Dir = "/"
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = errors.Join(child.Start(), pipe.Close())
	if err != nil {
		return status, err
	}
	stop := context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) })
	defer stop()
	lines := bufio.NewScanner(reports)
	lines.Buffer(nil, 1<<20)
	waiting := time.AfterFunc(quietStart, func() {
		progress(socket.Event{Step: "waiting", Took: quietStart, Message: "`coracle status` says for what"})
	})
	defer waiting.Stop()
	for lines.Scan() {
		waiting.Reset(quietStart)
		var e socket.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return status, err
		}
		switch {
		case e.Error != "":
			_ = child.Wait()
			return status, errors.New(e.Error)
		case e.Done:
			return *e.Status, child.Process.Release()
		default:
			progress(e)
		}
	}
	// The pipe was closed without a final event: the child crashed or was killed.
	err = child.Wait()
	if ctx.Err() != nil {
		return status, ctx.Err()
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return status, fmt.Errorf("the background process ended (%w) before the node was Ready: see %s", err, log.Name())
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// reporter returns a function that reports progress to `coracle start`, or does nothing in the foreground. It
// closes the pipe after the last event (Done or Error).
func reporter() func(socket.Event) {
	fd, err := strconv.Atoi(os.Getenv(reportVariable))
	if err != nil {
		return func(socket.Event) {}
	}
	_ = os.Unsetenv(reportVariable)
	syscall.CloseOnExec(fd)
	pipe := os.NewFile(uintptr(fd), "report")
	encoder := json.NewEncoder(pipe)
	return func(e socket.Event) {
		// The parent may have exited; ignore the error.
		_ = encoder.Encode(e)
		if e.Done || e.Error != "" {
			_ = pipe.Close()
		}
	}
}
