// Package bundle collects data for debugging a machine and its cluster in one archive. Its invariant: the archive
// contains no secrets. Secrets are not read, and everything else is masked (mask.go). Each entry and the whole archive
// have a maximum size.
package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// Config configures the sources of a bundle.
type Config struct {
	DataDir, RunDir string
	// Kubeconfig is the path of the administrator's kubeconfig, if this machine has one.
	Kubeconfig string
	// Options are the options of this command. They are used if no running process reports its own.
	Options any
	// Version, Certificates and Status write the output of `coracle version -o json`, `coracle certs check` and
	// `coracle status`; Rules writes Coracle's nftables rules.
	Version, Certificates, Status, Rules func(io.Writer) error
}

const (
	// mostEntry is the maximum size of an entry and mostAll of all entries, in bytes before compression.
	mostEntry, mostAll = 8 << 20, 64 << 20
	// mostLog is the number of bytes collected from the end of the log.
	mostLog  = 4 << 20
	patience = 15 * time.Second
	logFile  = "coracle.log"
)

// Write writes a gzipped tar archive to out and reports missing entries to progress. It fails only if it cannot
// write to out.
func Write(ctx context.Context, c Config, out, progress io.Writer) error {
	zip := gzip.NewWriter(out)
	b := &bundle{
		Config:  c,
		tar:     tar.NewWriter(zip),
		left:    mostAll,
		at:      time.Now().Truncate(time.Second),
		process: socket.NewClient(c.RunDir),
	}
	b.process.Silence = patience
	b.gather(ctx)
	b.report(progress)
	b.add("README.txt", b.readme())
	return errors.Join(b.err, b.tar.Close(), zip.Close())
}

type bundle struct {
	Config
	tar     *tar.Writer
	left    int
	at      time.Time
	process *socket.Client
	written []string
	missing []missing
	stopped bool  // no process runs here
	err     error // of writing the archive
}

// missing is an entry that could not be gathered as a whole.
type missing struct {
	name, reason string
	stopped      bool // it is missing because no process runs here
}

func (b *bundle) miss(name string, err error) {
	b.stopped = b.stopped || errors.Is(err, socket.ErrNotRunning)
	// A stopped server refuses connections to its API.
	stopped := errors.Is(err, socket.ErrNotRunning) || b.stopped && errors.Is(err, unix.ECONNREFUSED)
	b.missing = append(b.missing, missing{name, string(mask([]byte(err.Error()))), stopped})
}

// report names what is missing, once for each reason. If no process runs, it names what the archive has instead of
// what only a process could add.
func (b *bundle) report(to io.Writer) {
	if b.stopped {
		fmt.Fprintf(to, "coracle is not running here; the archive has %s\n", strings.Join(b.written, ", "))
	}
	var reasons []string
	names := map[string][]string{}
	for _, m := range b.missing {
		if m.stopped {
			continue
		}
		if names[m.reason] == nil {
			reasons = append(reasons, m.reason)
		}
		names[m.reason] = append(names[m.reason], m.name)
	}
	for _, reason := range reasons {
		fmt.Fprintf(to, "missing: %s\n  (%s)\n", strings.Join(names[reason], ", "), reason)
	}
}

func (b *bundle) entry(ctx context.Context, name string, f func(context.Context) ([]byte, error)) {
	if b.err != nil || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	data, err := f(ctx)
	if err != nil {
		b.miss(name, err)
	}
	if len(data) > 0 {
		b.add(name, mask(data))
	}
}

func (b *bundle) add(name string, data []byte) {
	if len(data) > mostEntry {
		data = append(data[:mostEntry:mostEntry], "\n(cut: too long)\n"...)
	}
	if len(data) > b.left {
		b.miss(name, errors.New("the archive is full"))
		return
	}
	b.left -= len(data)
	if err := errors.Join(b.tar.WriteHeader(&tar.Header{
		Name:    "coracle-support/" + name,
		Mode:    0o600,
		Size:    int64(len(data)),
		ModTime: b.at,
	})); err != nil {
		b.err = err
		return
	}
	if _, err := b.tar.Write(data); err != nil {
		b.err = err
	}
	b.written = append(b.written, name)
}

// gather adds the small and most useful entries first.
func (b *bundle) gather(ctx context.Context) {
	printed := func(name string, f func(io.Writer) error) {
		b.entry(ctx, name, func(context.Context) ([]byte, error) {
			text := bounded.NewBuffer(mostEntry + 1) // with one byte more, add truncates and says so
			err := f(text)
			return text.Bytes(), err
		})
	}
	printed("version.json", b.Version)
	printed("certificates.txt", b.Certificates)
	printed("status.txt", b.Status)
	b.entry(ctx, "status.json", func(ctx context.Context) ([]byte, error) {
		s, err := b.process.Health(ctx)
		if err != nil {
			return nil, err
		}
		return json.MarshalIndent(s, "", "  ")
	})
	b.entry(ctx, "options.json", func(ctx context.Context) ([]byte, error) {
		raw, err := b.process.Read(ctx, "/debug/coracle/options", mostEntry)
		if err == nil {
			return raw, nil
		}
		raw, _ = json.MarshalIndent(map[string]any{"ofThisCommand": b.Options}, "", "  ")
		return raw, fmt.Errorf("these are the options of this command, not of the process: %w", err)
	})
	served := func(name, path string) {
		b.entry(ctx, name, func(ctx context.Context) ([]byte, error) {
			raw, err := b.process.Read(ctx, path, mostEntry)
			if errors.Is(err, socket.ErrNotServed) { // an agent has no control plane
				err = nil
			}
			return raw, err
		})
	}
	for _, name := range []string{"cache", "reconcilers", "fairness", "store"} {
		served("inspect/"+name+".json", "/debug/coracle/"+name)
	}
	served("metrics/control-plane.txt", "/debug/coracle/metrics/control-plane")
	served("metrics/node.txt", "/debug/coracle/metrics/node")
	b.entry(ctx, "machine.txt", machine)
	b.entry(ctx, "mounts.txt", b.mounts)
	b.entry(ctx, "disks.txt", b.disks)
	printed("nftables.txt", b.Rules)
	b.cluster(ctx)
	b.logs(ctx)
	served("goroutines.txt", "/debug/pprof/goroutine?debug=2")
}

func (b *bundle) readme() []byte {
	var t strings.Builder
	fmt.Fprintf(&t, "Gathered by coracle support-bundle at %s.\n\n", b.at.UTC().Format(time.RFC3339))
	t.WriteString("There are no Secrets, keys or tokens in here. The values of environment variables, of annotations " +
		"and of HTTP headers of probes are\nmasked, and so is what looks like a password in the arguments of containers. " +
		"Names of objects, images and addresses are not.\n\n")
	for _, name := range b.written {
		fmt.Fprintln(&t, name)
	}
	if len(b.missing) > 0 {
		t.WriteString("\nMissing:\n")
		for _, m := range b.missing {
			fmt.Fprintf(&t, "- %s: %s\n", m.name, m.reason)
		}
	}
	return []byte(t.String())
}

func machine(context.Context) ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, path := range []string{
		"/proc/version", "/etc/os-release", "/proc/loadavg", "/proc/uptime", "/proc/meminfo", "/proc/filesystems",
		"/proc/pressure/memory", "/proc/pressure/io",
	} {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		raw, err := bounded.File(path, 1<<20)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		errs = append(errs, err)
		fmt.Fprintf(&out, "# %s\n%s\n", path, raw)
	}
	return out.Bytes(), errors.Join(errs...)
}

func (b *bundle) mounts(context.Context) ([]byte, error) {
	raw, err := bounded.File("/proc/self/mountinfo", mostEntry)
	var out bytes.Buffer
	for line := range bytes.Lines(raw) {
		if bytes.Contains(line, []byte(b.DataDir)) || bytes.Contains(line, []byte(b.RunDir)) {
			out.Write(line)
		}
	}
	if err == nil && out.Len() == 0 {
		out.WriteString("no mounts below " + b.DataDir + " and " + b.RunDir + "\n")
	}
	return out.Bytes(), err
}

// disks lists the space and inodes of the file systems that the cluster uses, like df.
func (b *bundle) disks(context.Context) ([]byte, error) {
	var out bytes.Buffer
	var errs []error
	for _, dir := range []string{"/", "/tmp", "/var/log", b.DataDir, b.RunDir} {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			errs = append(errs, &os.PathError{Op: "statfs", Path: dir, Err: err})
			continue
		}
		fmt.Fprintf(&out, "%s: %s of %s free, %d of %d inodes free, file system type %#x\n", dir,
			socket.Bytes(int64(fs.Bavail)*fs.Bsize), socket.Bytes(int64(fs.Blocks)*fs.Bsize), fs.Ffree, fs.Files, fs.Type)
	}
	return out.Bytes(), errors.Join(errs...)
}

// logs adds the log file of "coracle start", and the journal of the systemd services, which have no file.
func (b *bundle) logs(ctx context.Context) {
	written := len(b.written)
	b.entry(ctx, "journal.txt", journal)
	journaled := len(b.written) > written
	b.entry(ctx, "log.txt", func(context.Context) ([]byte, error) {
		raw, err := tail(filepath.Join(b.DataDir, logFile), mostLog)
		if journaled && errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		return raw, err
	})
}

// journalLines is how many lines of the journal are collected.
const journalLines = 20_000

// journal returns nothing if systemd has no entries of the services.
func journal(ctx context.Context) ([]byte, error) {
	program, err := exec.LookPath("journalctl")
	if err != nil {
		return nil, nil //nolint:nilerr // no systemd
	}
	out := bounded.NewBuffer(mostEntry + 1)
	cmd := exec.CommandContext(ctx, program, "--unit=coracle-server", "--unit=coracle-agent", "--no-pager", "--quiet",
		"--output=short-iso", fmt.Sprint("--lines=", journalLines))
	cmd.Stdout, cmd.WaitDelay = out, time.Second
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("journalctl: %w", err)
	}
	return out.Bytes(), nil
}

// tail returns at most the last most bytes of a file, from the beginning of a line.
func tail(path string, most int64) ([]byte, error) {
	f, err := bounded.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: a foreground process logs to its standard error, a systemd service to the journal", err)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-most)
	raw, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if from > 0 {
		if _, rest, ok := bytes.Cut(raw, []byte("\n")); ok {
			raw = rest
		}
	}
	return raw, err
}
