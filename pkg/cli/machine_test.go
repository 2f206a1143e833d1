package cli

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/systems/command/commandtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// images implements only the methods that the tests call.
type images struct {
	runtime.Images // nil
	*machine
}

// machine is a process behind the socket, with test data.
type machine struct {
	status      socket.Status
	health      []socket.Health
	stored      []runtime.Image
	loaded      string
	authorities socket.Authorities
	encryption  socket.Encryption
	calls       []string
	broken      error
}

func (m *machine) Status(context.Context) socket.Status     { return m.status }
func (m *machine) Health(context.Context) []socket.Health   { return m.health }
func (m *machine) Debug() http.Handler                      { return http.NotFoundHandler() }
func (m *machine) Stop(context.Context, func(string)) error { return nil }
func (m *machine) Images() runtime.Images                   { return images{machine: m} }
func (m *machine) Authorities(context.Context) (socket.Authorities, error) {
	return m.authorities, nil
}
func (m *machine) Encryption(context.Context) (socket.Encryption, error) { return m.encryption, nil }
func (m *machine) RotateServiceAccountKey(_ context.Context, d time.Duration) error {
	return m.call("rotate " + d.String())
}
func (m *machine) ReplaceAuthorities(_ context.Context, names []string) (socket.Authorities, error) {
	return m.authorities, m.call("replace " + strings.Join(names, ","))
}

func (m *machine) FinishAuthorities(_ context.Context, names []string, force bool) (socket.Authorities, error) {
	if !force {
		return socket.Authorities{}, errors.New("node a has no certificate of the new authority: --force ends the trust in " +
			"the old one nevertheless")
	}
	return m.authorities, m.call("finish " + strings.Join(names, ","))
}

func (m *machine) ChangeEncryption(action string, progress func(string)) error {
	progress("rewrote 3 of 3 objects")
	return m.call("encryption " + action)
}

func (m *machine) Snapshot(_ context.Context, to io.Writer) error {
	_, err := io.WriteString(to, "archive")
	return errors.Join(err, m.broken)
}

func (m *machine) call(text string) error {
	m.calls = append(m.calls, text)
	return nil
}

func (m images) List(context.Context) ([]runtime.Image, error) { return m.stored, nil }

func (m images) Load(_ context.Context, archive io.Reader) ([]runtime.Image, error) {
	raw, err := io.ReadAll(archive)
	m.loaded = string(raw)
	return []runtime.Image{{Names: []string{"registry.example/a:1", "registry.example/a:2"}}}, err
}

func (m images) Pull(_ context.Context, ref string, _ []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	observe.Progress(runtime.Progress{Done: 1 << 20, Total: 3 << 20})
	return runtime.Image{Names: []string{ref}, Size: 3 << 20}, nil
}

func (m images) Remove(_ context.Context, ref string) error {
	if ref == "missing" {
		return runtime.ErrNotFound
	}
	return m.call("remove " + ref)
}

func (m *machine) serve(t *testing.T) string {
	dir := t.TempDir()
	runtest.Start(t, socket.NewServer(dir, m))
	return dir
}

func TestStatus(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	require.ErrorIs(t, Status(t.Context(), dir, "/data", "", &out), socket.ErrNotRunning)
	require.Empty(t, out.String(), "the error says it")
	require.ErrorIs(t, Status(t.Context(), dir, "/data", "json", &out), socket.ErrNotRunning)
	require.JSONEq(t,
		`{"running": false, "version": "", "dataDir": "/data", "runDir": "`+dir+`", "components": [], "processes": []}`,
		out.String(), "programs get a document in any case")

	started := time.Now().Add(-90 * time.Second)
	m := &machine{
		status: socket.Status{
			Running: true, PID: 7, StartedAt: &started, Server: "https://10.0.0.1:6443", Node: "raft", NodeIP: "10.0.0.1",
			DataDir: "/data", DiskFree: 3 << 30, DiskSize: 4 << 30,
			Warnings: []string{"the clock jumped"}, Processes: []socket.Process{{PSS: 60 << 20}, {PSS: 4 << 20}},
			Components: []socket.Component{
				{Name: "store", Ready: true, Took: 41_230 * time.Microsecond}, {Name: "dns", Problem: "port 53 is taken"},
			},
		},
		health: []socket.Health{
			{Component: "store", State: socket.OK, Summary: "2 MiB"},
			{
				Component: "dns", State: socket.Unhealthy, Summary: "does not serve",
				Details: []string{"port 53 is taken by pid 9"},
			},
		},
	}
	dir = m.serve(t)
	out.Reset()
	err := Status(t.Context(), dir, "/data", "", &out)
	var unhealthy *UnhealthyError
	require.ErrorAs(t, err, &unhealthy)
	require.EqualError(t, err, "unhealthy: dns")
	require.Equal(t, `Running     pid 7, for 1m30s, 64.0 MiB in 2 processes
Server      https://10.0.0.1:6443
Node        raft 10.0.0.1
Data        /data
Disk        3.0 GiB of 4.0 GiB are free
Warning     the clock jumped

PART          HEALTH      DETAILS
store         ok          2 MiB
dns           unhealthy   does not serve
                          - port 53 is taken by pid 9

COMPONENT  READY                STARTED IN
dns        no port 53 is taken  0s
`, regexp.MustCompile(`for 1m[34][0-9]s`).ReplaceAllString(out.String(), "for 1m30s"))
	out.Reset()
	require.ErrorAs(t, Status(t.Context(), dir, "/data", "wide", &out), &unhealthy)
	require.Contains(t, out.String(), "store      yes                  41.2ms\n")
	require.EqualError(t, Status(t.Context(), dir, "/data", "yaml", &out),
		`output "yaml" is not known: leave it out, or use wide or json`)
}

func TestStatusFitsTerminal(t *testing.T) {
	started := time.Now()
	s := socket.Status{
		StartedAt: &started, Server: "https://10.0.0.1:6443", Join: "coracle agent --server=https://10.0.0.1:6443",
		Warnings: []string{"the clock of this machine jumped by 12 minutes; leases of nodes may have expired"},
		Health: []socket.Health{{
			Component: "scheduler", State: socket.Warning, Summary: "1 pod pending: `coracle help debug-a-pod`",
			Details: []string{"default/big pending for 2m: 0/1 nodes are available: 1 Insufficient cpu (wants 8, has 2)."},
		}},
	}
	var out strings.Builder
	printStatus(s, false, &out, 80)
	require.Contains(t, out.String(), `
Warning     the clock of this machine jumped by 12 minutes; leases of nodes may
            have expired

PART          HEALTH      DETAILS
scheduler     warning     1 pod pending: `+"`coracle help debug-a-pod`"+`
                          - default/big pending for 2m: 0/1 nodes are available:
                            1 Insufficient cpu (wants 8, has 2).
`)
	for line := range strings.Lines(out.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
}

func TestImageCommands(t *testing.T) {
	m := &machine{status: socket.Status{Running: true, Node: "a", OtherNodes: []string{"b", "c"}}, stored: []runtime.Image{
		{ID: "sha256:bbbbbbbbbbbbbbbb", Names: []string{"registry.example/b:1", "registry.example/b:latest"}, Size: 5 << 20},
		{ID: "sha256:aaaa", Size: 999},
	}}
	dir := m.serve(t)
	require.Equal(t, `IMAGE                      ID            SIZE
<none>                     aaaa          999 B
registry.example/b:1       bbbbbbbbbbbb  5.0 MiB
registry.example/b:latest  bbbbbbbbbbbb  5.0 MiB
`, commandtest.Output(t, func(out io.Writer) error { return Images(t.Context(), dir, out) }))

	file := filepath.Join(t.TempDir(), "a.tar")
	require.NoError(t, os.WriteFile(file, []byte("archive"), 0o600))
	var hints strings.Builder
	loaded := commandtest.Output(t, func(out io.Writer) error {
		return LoadImages(t.Context(), dir, []string{file}, nil, out, &hints)
	})
	require.Contains(t, hints.String(), "Only node a has loaded them. If pods on b, c need them too, run this command")
	require.Equal(t, "loaded registry.example/a:1\nloaded registry.example/a:2\n", loaded)
	require.Equal(t, "archive", m.loaded)
	commandtest.Output(t, func(out io.Writer) error {
		return LoadImages(t.Context(), dir, []string{"-"}, strings.NewReader("piped"), out, io.Discard)
	})
	require.Equal(t, "piped", m.loaded)
	require.ErrorContains(t, LoadImages(t.Context(), dir, []string{"nowhere.tar"}, nil, io.Discard, io.Discard),
		"there is no file nowhere.tar")

	var progress strings.Builder
	pulled := commandtest.Output(t, func(out io.Writer) error {
		return PullImage(t.Context(), dir, "registry.example/a:1", out, &progress)
	})
	require.Equal(t, "pulled registry.example/a:1, 3.0 MiB\n", pulled)
	require.Contains(t, progress.String(), "1.0 MiB of 3.0 MiB")

	var out strings.Builder
	err := RemoveImages(t.Context(), dir, []string{"a", "missing", "b"}, &out)
	require.ErrorContains(t, err, "missing: ")
	require.Equal(t, "removed a\n", out.String())
	require.Equal(t, []string{"remove a"}, m.calls, "it ends with the first failure")
}

func TestAuthorityCommands(t *testing.T) {
	last := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	m := &machine{authorities: socket.Authorities{
		List:      []socket.Authority{{Name: "server"}, {Name: "client", Replaces: &socket.Authority{Name: "client"}}},
		Replacing: true, Pods: 2,
		Behind: []socket.Behind{
			{Node: "a", Problem: "uses the old certificate"},
			{User: "jane", Problem: "logs in with the old one", Last: &last},
		},
	}}
	dir := m.serve(t)
	require.Equal(t, `Certificates are issued by the new authorities from now on, and the admin kubeconfig was updated.
Join tokens made before work until the replacement is finished.

Being replaced: client. Both old and new are trusted.
  node a uses the old certificate
  user jane logs in with the old one, last 2026-01-02 03:04:05
  Started before: 2 running pods. If their programs read the API's authority only once, restart them first.
Nodes follow within seconds if they run. `+"`coracle certs rotate --ca --finish`"+` ends the trust in the old ones.
`,
		commandtest.Output(t, func(out io.Writer) error {
			return RotateAuthorities(t.Context(), dir, []string{"client"}, out)
		}))

	require.ErrorContains(t, FinishAuthorities(t.Context(), dir, nil, false, io.Discard), "node a has no certificate")
	m.authorities = socket.Authorities{Pods: 1}
	finished := commandtest.Output(t, func(out io.Writer) error {
		return FinishAuthorities(t.Context(), dir, []string{"client"}, true, out)
	})
	require.Contains(t, finished, "Started before the API's authority was replaced: 1 running pod. Restart")

	require.Equal(t,
		"Service account tokens are signed with a new key. Those of the earlier one remain valid for another 60m.\n",
		commandtest.Output(t, func(out io.Writer) error { return RotateServiceAccountKey(t.Context(), dir, time.Hour, out) }))
	require.Equal(t, "Service account tokens are signed with a new key. Those of the earlier one are invalid now.\n",
		commandtest.Output(t, func(out io.Writer) error { return RotateServiceAccountKey(t.Context(), dir, 0, out) }))
	require.Equal(t, []string{"replace client", "finish client", "rotate 1h0m0s", "rotate 0s"}, m.calls)

	require.ErrorContains(t, Certs(t.Context(), t.TempDir(), dir, io.Discard),
		"this machine runs no server, and has not joined one")
}

func TestReplacementListsAreBounded(t *testing.T) {
	s := socket.Authorities{Behind: make([]socket.Behind, mostPrinted+5)}
	text := commandtest.Output(t, func(out io.Writer) error { return printReplacement(s, out) })
	require.Contains(t, text, "  and 5 more\n")
	require.Contains(t, text, "All nodes have followed.")
}

func TestEncryptionCommands(t *testing.T) {
	m := &machine{}
	dir := m.serve(t)
	status := func() string {
		return commandtest.Output(t, func(out io.Writer) error { return Encryption(t.Context(), dir, "", out) })
	}
	require.Equal(t, "Encryption is off. `coracle start --secrets-encryption` encrypts Secrets from then on.\n", status())

	rule := socket.EncryptionRule{Resource: "secrets", Provider: "secretbox", Key: "key2"}
	m.encryption = socket.Encryption{Enabled: true, File: "/data/encryption.yaml", Writes: []socket.EncryptionRule{rule},
		Stored: []socket.EncryptionCount{
			{EncryptionRule: rule, Objects: 3, Current: true},
			{EncryptionRule: socket.EncryptionRule{Resource: "secrets"}, Objects: 5, Unreadable: 1},
		}}
	require.Equal(t, `Configuration: /data/encryption.yaml

RESOURCE  NEW OBJECTS ARE WRITTEN WITH  KEY
secrets   secretbox                     key2

RESOURCE  STORED WITH    KEY   OBJECTS  NOTE
secrets   secretbox      key2  3        -
secrets   no encryption  -     5        1 cannot be read

Not stored as new objects are: 4 objects. `+"`coracle secrets-encrypt reencrypt`"+` rewrites old ones.
`, status())
	require.EqualError(t, Encryption(t.Context(), dir, "yaml", io.Discard),
		`output "yaml" is not known: leave it out, or use json`)
	require.Equal(t, "rewrote 3 of 3 objects\n",
		commandtest.Output(t, func(out io.Writer) error {
			return ChangeEncryption(t.Context(), dir, socket.EncryptionRotate, out)
		}))
}

func TestSaveSnapshot(t *testing.T) {
	m := &machine{}
	run, dir := m.serve(t), t.TempDir()
	file := filepath.Join(dir, "a")
	require.Equal(t, "archive",
		commandtest.Output(t, func(out io.Writer) error { return SaveSnapshot(t.Context(), run, "-", out) }))
	require.Equal(t, "saved "+file+", 7 B. It contains the cluster's keys: "+
		"keep it as safe as an administrator's credential.\n",
		commandtest.Output(t, func(out io.Writer) error { return SaveSnapshot(t.Context(), run, file, out) }))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	require.ErrorContains(t, SaveSnapshot(t.Context(), run, file, io.Discard), "exists already")

	m.broken = errors.New("the disk failed")
	require.ErrorContains(t, SaveSnapshot(t.Context(), run, filepath.Join(dir, "b"), io.Discard),
		"the snapshot is incomplete")
	require.ErrorIs(t, SaveSnapshot(t.Context(), dir, filepath.Join(dir, "b"), io.Discard), socket.ErrNotRunning)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing incomplete is left")
}
