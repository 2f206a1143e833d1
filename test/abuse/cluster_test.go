// Package abuse attacks a real cluster as a tenant, a root container, a node's credential or a registry could, and
// checks that the server still serves others and that its memory stays bounded. The manual's page "attacks" names
// the tests.
//
//	go test ./test/abuse                                 what `make test` runs, under two minutes
//	go test ./test/abuse -run TestAbuse/yaml_aliases     one attack
package abuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coracle-dev/coracle/test/host"
)

const (
	// memoryLimit is the cgroup limit of the process, if the test can create cgroups; residentLimit is its maximum
	// peak.
	memoryLimit   = 512 << 20
	residentLimit = 400 << 20
	// slowest is the maximum duration of a request by the bystander during an attack, on an otherwise idle machine.
	// A request includes wakeUps wake-ups of threads; each may be as late as a timer is while other programs use
	// the processors.
	wakeUps = 4
	slowest = time.Second

	tenantNamespace = "tenant"
)

type cluster struct {
	*host.Host
	admin kubernetes.Interface
	// tenant may edit only its own namespace.
	tenant       kubernetes.Interface
	tenantConfig *rest.Config
	bystander    kubernetes.Interface
	pid          int
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Host: host.New(t)}
	limited(t, c.Name, func(prefix []string) {
		start := append(prefix, c.Coracle, "start")
		ctx, cancel := context.WithTimeout(t.Context(), host.Patience)
		defer cancel()
		out, err := c.Command(ctx, start[0], start[1:]...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	})
	c.Load()
	c.pid = c.Status().PID
	var err error
	c.admin, err = kubernetes.NewForConfig(c.REST())
	require.NoError(t, err)
	c.tenantConfig, c.tenant = c.account(t, tenantNamespace)
	_, c.bystander = c.account(t, "bystander")
	return c
}

// limited returns the words that run a command line within the memory limit, if this machine supports it.
func limited(t *testing.T, name string, start func(prefix []string)) {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup/memory", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Logf("no memory limit around the process: %v", err)
		start(nil)
		return
	}
	// The test's cleanup, registered earlier, has not yet deleted the cluster.
	t.Cleanup(func() { _ = os.Remove(dir) })
	require.NoError(t, os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(strconv.Itoa(memoryLimit)), 0))
	start([]string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, dir})
}

// account creates a namespace that its service account "default" may edit, and clients with a token of that account.
func (c *cluster) account(t *testing.T, namespace string) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	_, err := c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = c.admin.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	var token *authenticationv1.TokenRequest
	require.Eventually(t, func() bool {
		token, err = c.admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{},
			metav1.CreateOptions{})
		return err == nil
	}, host.Patience, 10*time.Millisecond, "the service account of %s was not made", namespace)
	config := rest.AnonymousClientConfig(c.REST())
	config.BearerToken, config.Dial, config.QPS = token.Status.Token, c.Dial, -1
	api, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return config, api
}

// under runs an attack while the bystander works, then checks its effect on the bystander and on the server's memory.
func (c *cluster) under(t *testing.T, attack func(t *testing.T)) {
	t.Helper()
	pid := c.pid
	require.NoError(t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0),
		"the peak of resident memory cannot be reset")
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var worst, late time.Duration
	var failure error
	var count int
	wg.Add(1)
	go func() {
		defer wg.Done()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			began := time.Now()
			_, err := c.bystander.CoreV1().ConfigMaps("bystander").Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			if ctx.Err() != nil {
				return
			}
			count++
			worst = max(worst, time.Since(began))
			failure = errors.Join(failure, err)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	wg.Go(func() {
		const every = 10 * time.Millisecond
		tick := time.NewTicker(every)
		defer tick.Stop()
		for last := time.Now(); ; last = time.Now() {
			select {
			case <-tick.C:
				late = max(late, time.Since(last)-every)
			case <-ctx.Done():
				return
			}
		}
	})
	attack(t)
	stop()
	wg.Wait()
	require.NoError(t, failure, "the bystander was refused")
	peak := peak(t, pid)
	t.Logf("%d requests of a bystander, slowest %s; timers late by %s; the server's peak %d MB", count,
		worst.Round(time.Millisecond), late.Round(time.Millisecond), peak>>20)
	require.Less(t, worst, slowest+wakeUps*late, "the bystander waited")
	require.Less(t, peak, int64(residentLimit), "resident memory of the server")
}

// used returns the processor time of a process.
func used(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third one, the state
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime, of a hundredth of a second
		n, err := strconv.ParseInt(field, 10, 64)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}

// peak returns the maximum resident memory of a process since it was last reset, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(value)[0], 10, 64)
			require.NoError(t, err)
			return kb << 10
		}
	}
	t.Fatal("/proc/PID/status has no VmHWM line")
	return 0
}
