package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/host/disk"
)

// Stop stops this machine's pods gracefully and then the process, and returns when it has exited. It returns
// socket.ErrNotRunning if no process runs. Pods get their grace period. A process that hangs is killed at the
// latest 80 s after its last response.
func Stop(ctx context.Context, c config.Config, progress func(socket.Event)) error {
	if err := checkRunDir(ctx, c); err != nil {
		return err
	}
	client := socket.NewClient(c.RunDir)
	if err := stop(ctx, client, c, progress); !errors.Is(err, socket.ErrNotRunning) {
		return err
	}
	// A start may be under way whose process does not serve its socket yet.
	release, err := endStart(ctx, c.DataDir, func(format string, args ...any) {
		progress(socket.Event{Message: fmt.Sprintf(format, args...)})
	})
	if err != nil {
		return err
	}
	defer release()
	return stop(ctx, client, c, progress)
}

func stop(ctx context.Context, client *socket.Client, c config.Config, progress func(socket.Event)) error {
	say := func(format string, args ...any) { progress(socket.Event{Message: fmt.Sprintf(format, args...)}) }
	err := client.Stop(ctx, progress)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, socket.ErrSilent) {
		say("the process does not respond: terminating it without stopping its pods")
	}
	pid, killed, endErr := ending{dir: c.DataDir, graceful: stopPatience, killed: killPatience, say: say}.run(ctx)
	switch {
	case errors.Is(err, socket.ErrNotRunning) && pid != 0: // it was just starting or already stopping
		return endErr
	case errors.Is(err, socket.ErrSilent):
		if endErr == nil {
			endErr = errors.New("the process hung and was killed, its pods were not stopped: `coracle start` adopts them, " +
				"`coracle delete` removes them")
		}
		return endErr
	case killed && endErr == nil:
		say("its log, %s, says what did not stop", filepath.Join(c.DataDir, logFile))
	}
	return errors.Join(err, endErr)
}

// HasState reports whether this machine has a directory of the cluster.
func HasState(c config.Config) bool {
	for _, dir := range []string{c.DataDir, c.RunDir} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// Delete stops the process and removes everything of the cluster from this machine, including leftovers of a killed
// process. It may be repeated. Pods get no grace period: their containers are killed. A process that does not exit
// within 15 s is killed.
func Delete(ctx context.Context, c config.Config, progress func(socket.Event)) error {
	if os.Geteuid() != 0 {
		return errors.New("coracle needs root: run it with sudo")
	}
	// The returned error covers the libraries' warnings.
	klog.SetLogger(logr.FromSlogHandler(atLeast{slog.Default().Handler(), slog.LevelError}))
	say := func(format string, args ...any) { progress(socket.Event{Message: fmt.Sprintf(format, args...)}) }
	if err := checkRunDir(ctx, c); err != nil {
		return err
	}
	release, err := endStart(ctx, c.DataDir, say)
	if err != nil {
		return err
	}
	defer release()
	pid := holder(c.DataDir)
	status, err := socket.NewClient(c.RunDir).Status(ctx)
	if err == nil && pid == 0 {
		return fmt.Errorf("process %d runs without its data directory %s, which was removed: end it with `coracle stop`, "+
			"then delete again", status.PID, c.DataDir)
	}
	if text := leftElsewhere(c.DataDir, status); text != "" {
		say("%s", text)
	}
	if pid != 0 {
		say("ending process %d", pid)
		// SIGTERM lets the store close. The steps below remove the containers.
		if _, _, err := (ending{
			dir:      c.DataDir,
			graceful: deletePatience,
			killed:   killPatience,
			hurry:    true,
			say:      say,
		}).run(ctx); err != nil {
			return err
		}
	}
	ca, err := clusterCAs(c.DataDir)
	if err != nil {
		return err
	}
	found := HasState(c)
	if found {
		say("removing containers, network and mounts")
	}
	if err := purge(ctx, withoutLinks(c)); err != nil {
		return err
	}
	if ca != nil {
		if err := unmergeKubeconfig(userKubeconfig(), ca); err != nil {
			return err
		}
	}
	if found {
		say("removing %s and %s", c.DataDir, c.RunDir)
	}
	return errors.Join(removeDir(ctx, c.RunDir), removeDir(ctx, c.DataDir))
}

// removeDir removes a directory tree of any depth, including contents that resist removal. If the directory is a
// symbolic link or a mount point, the administrator made it, so only its contents are removed.
func removeDir(ctx context.Context, dir string) error {
	dir = filepath.Clean(dir)
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink == 0 {
		if err = disk.RemoveAll(ctx, dir); !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	entries, readErr := os.ReadDir(dir)
	if errors.Is(readErr, fs.ErrNotExist) { // a dangling link
		return nil
	}
	err = readErr
	for _, e := range entries {
		err = errors.Join(err, disk.RemoveAll(ctx, filepath.Join(dir, e.Name())))
	}
	return err
}
