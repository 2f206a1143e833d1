// Package host gives tests a machine to run Coracle on: a network namespace and directories, so that a cluster on
// the real machine is not affected. It runs the built binary as a user would.
//
// It needs root, bin/coracle, and the images in dist/images: `make build images`.
package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Patience is the timeout of every command, far above the usual duration and above the timeouts that tests give to
// kubectl wait.
const Patience = 3 * time.Minute

// Host is a machine to run Coracle on.
type Host struct {
	t *testing.T
	// Name is the node's name. Home is the user's home directory.
	Name, Home, DataDir, RunDir, Coracle string
	// Address is the machine's IP address.
	Address string

	images, netns string
	env           []string
}

// Root returns the directory of the checkout.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	require.NoError(t, err)
	return dir
}

// New creates a network namespace with one address and a default route, and deletes the cluster in it when the test
// ends.
func New(t *testing.T) *Host {
	t.Helper()
	h := bare(t, fmt.Sprintf("cor%d", os.Getpid()%100000))
	h.ip("link add eth0 type veth peer name wire0", "link set wire0 up")
	h.address("198.51.100.2")
	return h
}

// Beside creates a second machine in the same network. Call it once.
func (h *Host) Beside() *Host {
	h.t.Helper()
	other := bare(h.t, h.Name+"b")
	h.ip("link set wire0 netns " + other.Name + " name eth0")
	other.address("198.51.100.3")
	return other
}

// Cut disconnects the machine from the network until Mend by dropping all packets silently. Links and routes stay,
// as when a switch fails.
func (h *Host) Cut() {
	h.t.Helper()
	h.nft(`table inet cut {
		chain in { type filter hook prerouting priority -400; iifname "eth0" drop; }
		chain out { type filter hook postrouting priority 400; oifname "eth0" drop; }
	}`)
}

// Mend undoes Cut.
func (h *Host) Mend() {
	h.t.Helper()
	h.nft("delete table inet cut")
}

func (h *Host) nft(commands string) {
	h.t.Helper()
	out, err := h.Command(h.t.Context(), "nft", commands).CombinedOutput()
	require.NoError(h.t, err, "nft %s: %s", commands, out)
}

func (h *Host) ip(lines ...string) {
	h.t.Helper()
	for _, line := range lines {
		System(h.t, "ip", append([]string{"-n", h.Name}, strings.Fields(line)...)...)
	}
}

func (h *Host) address(ip string) {
	h.t.Helper()
	h.Address = ip
	h.ip("link set lo up", "link set eth0 up", "addr add "+ip+"/24 dev eth0",
		"route add default via 198.51.100.1 dev eth0")
}

// bare returns a machine without an address.
func bare(t *testing.T, name string) *Host {
	t.Helper()
	require.Zero(t, os.Geteuid(), "the end-to-end tests need root")
	coracle := filepath.Join(Root(t), "bin/coracle")
	require.FileExists(t, coracle, "run `make build` first")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	h := &Host{
		t: t, Name: name, Home: filepath.Join(dir, "home"),
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Coracle: coracle,
		images: filepath.Join(Root(t), "dist/images"), netns: "/run/netns/" + name,
	}
	require.NoError(t, os.Mkdir(h.Home, 0o700))
	h.env = append(os.Environ(), "HOME="+h.Home, "KUBECONFIG=", "CORACLE_DATA_DIR="+h.DataDir, "CORACLE_RUN_DIR="+h.RunDir,
		"CORACLE_NODE_NAME="+h.Name,
		// The eviction limits are low: the disk of the machine that runs the tests may be nearly full.
		"CORACLE_EVICTION_HARD=nodefs.available<64Mi,imagefs.available<64Mi,nodefs.inodesFree<0%,imagefs.inodesFree<0%",
		"CORACLE_IMAGE_GC_HIGH_THRESHOLD=100")
	System(t, "ip", "netns", "add", h.Name)
	t.Cleanup(func() { System(t, "ip", "netns", "del", h.Name) })
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(h.DataDir, "coracle.log"))
			t.Logf("the end of the log:\n%s", log[max(0, len(log)-8000):])
		}
		out, err := h.Try("delete")
		if err != nil {
			t.Errorf("delete: %v\n%s", err, out)
		}
	})
	return h
}

// Prefix returns the prefix of the kernel object names of a cluster with a data directory.
func Prefix(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	return "cor" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:13]
}

// System runs a command on this machine, which must succeed, and returns its output.
func System(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return string(out)
}

// Command returns a command that runs in the host's network namespace.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + h.netns, "--", name}, args...)...)
	c.Env = h.env
	c.WaitDelay = 5 * time.Second
	return c
}

// Try runs coracle and returns its combined output and error.
func (h *Host) Try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	out, err := h.Command(ctx, h.Coracle, args...).CombinedOutput()
	return string(out), err
}

// Run runs coracle, which must succeed, and returns its standard output.
func (h *Host) Run(args ...string) string {
	h.t.Helper()
	return h.Pipe("", args...)
}

// Pipe is Run with a standard input.
func (h *Host) Pipe(stdin string, args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Patience)
	defer cancel()
	c := h.Command(ctx, h.Coracle, args...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	require.NoError(h.t, c.Run(), "coracle %s\n%s%s", strings.Join(args, " "), out.String(), errs.String())
	return out.String()
}

// Ctl runs kubectl with the words of a line, which must succeed, and returns its standard output.
func (h *Host) Ctl(line string) string {
	h.t.Helper()
	return h.Run(append([]string{"ctl"}, strings.Fields(line)...)...)
}

// Await repeats kubectl wait with the words of a line until it succeeds, but no longer than limit, which may exceed
// Patience.
func (h *Host) Await(limit time.Duration, line string) {
	h.t.Helper()
	for end := time.Now().Add(limit); ; {
		out, err := h.Try(append([]string{"ctl", "wait", "--timeout=60s"}, strings.Fields(line)...)...)
		if err == nil {
			return
		}
		require.True(h.t, time.Now().Before(end), "%s: %s", line, out)
	}
}

// Shows waits until the output of kubectl with the words of a line contains want.
func (h *Host) Shows(want, line string) {
	h.t.Helper()
	var out string
	if !assert.Eventually(h.t, func() bool {
		said, err := h.Try(append([]string{"ctl"}, strings.Fields(line)...)...)
		if err != nil {
			return false
		}
		out = said
		return strings.Contains(out, want)
	}, Patience, 50*time.Millisecond, line) {
		require.Contains(h.t, out, want)
	}
}

// Apply applies a manifest.
func (h *Host) Apply(manifest string) {
	h.t.Helper()
	h.Pipe(manifest, "ctl", "apply", "-f", "-")
}

// Fails runs coracle, which must fail, and returns its combined output.
func (h *Host) Fails(args ...string) string {
	h.t.Helper()
	out, err := h.Try(args...)
	require.Error(h.t, err, "coracle %s\n%s", strings.Join(args, " "), out)
	return out
}

// Start starts the cluster and loads the images.
func (h *Host) Start(args ...string) {
	h.t.Helper()
	h.Run(append([]string{"start"}, args...)...)
	h.Load()
}

// Load loads the test images.
func (h *Host) Load() {
	h.t.Helper()
	archives, err := filepath.Glob(filepath.Join(h.images, "*.tar"))
	require.NoError(h.t, err)
	require.NotEmpty(h.t, archives, "run `make images` first")
	h.Run(append([]string{"image", "load"}, archives...)...)
}

// Curl fetches a URL from the host's network namespace.
func (h *Host) Curl(url string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	out, err := h.Command(ctx, "curl", "-fsS", "--max-time", "30", url).Output()
	return string(out), err
}

// Status is the output of `coracle status -o json`.
type Status struct {
	Running   bool
	PID       int
	Processes []struct {
		PID      int
		Name     string
		PSSBytes int64 `json:"pssBytes"`
	}
}

// Status returns the status of the cluster's process, which must be running but need not be healthy.
func (h *Host) Status() (s Status) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Patience)
	defer cancel()
	out, err := h.Command(ctx, h.Coracle, "status", "-o", "json").Output()
	require.NoError(h.t, json.Unmarshal(out, &s), "%v", err)
	require.True(h.t, s.Running, "%v", err)
	return s
}

// Kill kills the background process with SIGKILL and returns once it has exited.
func (h *Host) Kill() {
	h.t.Helper()
	h.KillAtOnce(h.Status().PID)
}

// KillAtOnce is Kill for a process whose Status is already known.
func (h *Host) KillAtOnce(pid int) {
	h.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(h.t, err)
	defer unix.Close(fd)
	require.NoError(h.t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	// The descriptor becomes readable when the last thread has ended. The process is a zombie already when its
	// first thread has; other threads may then still hold locks and ports.
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for limit := time.Now().Add(Patience); ; {
		n, err := unix.Poll(ended, int(max(0, time.Until(limit)).Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		require.NoError(h.t, err)
		require.Equal(h.t, 1, n, "process %d does not end", pid)
		return
	}
}

// InNetwork runs f on a thread in the host's network namespace.
func (h *Host) InNetwork(f func() error) error {
	return inNetwork(h.netns, f)
}
