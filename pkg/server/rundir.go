package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// ownerFile is in a run directory and contains its owner as JSON, in one line. A process writes it before it acquires
// anything. Run directories of earlier versions have none until their cluster is started again.
const ownerFile = "owner.json"

// runOwner is the cluster that a run directory belongs to.
type runOwner struct {
	DataDir string `json:"dataDir"`
	// Instance is what instance returned, which would be something else if files of the data directory were lost.
	Instance string `json:"instance"`
}

// runDirFile is in a data directory and contains the path of the run directory that its cluster has, in one line.
const runDirFile = "run-dir"

var validInstance = regexp.MustCompile(`^cor[a-z0-9]{4,13}$`)

// answerTimeout is the timeout for the process that uses a run directory to say which data directory it has.
const answerTimeout = 2 * time.Second

// checkRunDir returns an error if the run directory belongs to another data directory, of a cluster that runs or was
// killed, or the data directory has another run directory: the network of the cluster's pods is recorded there.
func checkRunDir(ctx context.Context, c config.Config) error {
	if dir := otherRunDir(c); dir != "" {
		return fmt.Errorf("the cluster in %s has the run directory %s, where the network of its pods is recorded: give "+
			"--run-dir %s", c.DataDir, dir, dir)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	status, err := socket.NewClient(c.RunDir).Status(ctx)
	if err == nil {
		return ownedBy(c, status.DataDir, status.PID)
	}
	switch o, readErr := runDirOwner(c.RunDir); {
	case readErr != nil:
		return readErr
	case o.DataDir != "":
		return ownedBy(c, o.DataDir, 0)
	}
	if errors.Is(err, socket.ErrNotRunning) || holder(c.DataDir) != 0 { // its own process may hang
		return nil
	}
	return fmt.Errorf("a process that does not respond uses the run directory %s, and none the data directory %s: give "+
		"the --data-dir and --run-dir of one cluster (%w)", c.RunDir, c.DataDir, err)
}

// claimRunDir records that the run directory, which exists, belongs to the data directory, unless it belongs to
// another. It may be repeated.
func claimRunDir(c config.Config) error {
	f, err := os.OpenFile(filepath.Join(c.RunDir, ownerFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// Another process may claim it at the same time. The lock ends when the file is closed, or the process is killed.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	switch o, err := readOwner(f); {
	case err != nil:
		return err
	case o.DataDir != "":
		if err := ownedBy(c, o.DataDir, 0); err != nil {
			return err
		}
		return recordRunDir(c)
	}
	text, err := json.Marshal(runOwner{DataDir: resolved(c.DataDir), Instance: instance(c)})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return errors.Join(f.Sync(), atomicfile.SyncDir(c.RunDir), recordRunDir(c))
}

// recordRunDir writes into the data directory which run directory its cluster has.
func recordRunDir(c config.Config) error {
	file, dir := filepath.Join(c.DataDir, runDirFile), resolved(c.RunDir)+"\n"
	if text, err := bounded.File(file, unix.PathMax); err == nil && string(text) == dir {
		return nil
	}
	return atomicfile.Write(file, []byte(dir))
}

// otherRunDir returns the run directory that the data directory's cluster has if it is not the configured one, and ""
// if it is, or is gone.
func otherRunDir(c config.Config) string {
	text, err := bounded.File(filepath.Join(c.DataDir, runDirFile), unix.PathMax)
	dir := strings.TrimSuffix(string(text), "\n")
	if err != nil || !filepath.IsAbs(dir) || dir == resolved(c.RunDir) {
		return ""
	}
	if o, err := runDirOwner(dir); err != nil || o.DataDir != resolved(c.DataDir) {
		return ""
	}
	return dir
}

// runDirOwner returns the recorded owner of a run directory, which has no DataDir if there is none.
func runDirOwner(runDir string) (runOwner, error) {
	f, err := os.Open(filepath.Join(runDir, ownerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return runOwner{}, nil
	}
	if err != nil {
		return runOwner{}, err
	}
	defer f.Close()
	return readOwner(f)
}

// readOwner returns no owner if the process that wrote the file was killed before it completed it: that one acquired
// nothing.
func readOwner(f *os.File) (o runOwner, err error) {
	text, err := bounded.All(f, 4*unix.PathMax)
	if err == nil && !bytes.HasSuffix(text, []byte("\n")) {
		return runOwner{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err == nil && (!filepath.IsAbs(o.DataDir) || !validInstance.MatchString(o.Instance)) {
		err = fmt.Errorf("%q and %q are no data directory and instance", o.DataDir, o.Instance)
	}
	if err != nil {
		return runOwner{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return o, nil
}

// ownedBy returns an error if the run directory's owner is not the configured data directory. pid is the owner's
// process, 0 if none runs.
func ownedBy(c config.Config, dataDir string, pid int) error {
	if resolved(dataDir) == resolved(c.DataDir) {
		return nil
	}
	if pid == 0 {
		pid = holder(dataDir)
	}
	if pid != 0 {
		return fmt.Errorf("%s is the run directory of the cluster in %s, which runs with pid %d: give --data-dir %s for "+
			"that one, or another --run-dir for the one in %s",
			c.RunDir, dataDir, pid, dataDir, c.DataDir)
	}
	if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is the run directory of a cluster whose data directory %s is gone: `coracle delete "+
			"--data-dir %s --run-dir %s` removes what is left of it on this machine",
			c.RunDir, dataDir, dataDir, c.RunDir)
	}
	return fmt.Errorf("%s is the run directory of the cluster in %s, which is not running: give --data-dir %s for that "+
		"one (`coracle start` resumes it, `coracle delete` removes it), or another --run-dir for the one in %s",
		c.RunDir, dataDir, dataDir, c.DataDir)
}
