// Package pod brings the pods of a node to their desired state. Plan compares a pod with its observed state and
// returns the next actions; the Manager executes them and writes the status.
//
// Invariant: container state is read from the runtime, so that a new Manager continues where a killed one stopped.
package pod

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Labels of containers in the runtime. They persist what the agent needs to know after a restart.
const (
	labelPodName   = "pod"
	labelNamespace = "namespace"
	labelName      = "container"
	labelAttempt   = "attempt"
	labelBackOff   = "backoff"  // delay before its replacement starts if it exits, a Go duration
	labelHash      = "hash"     // see specHash
	labelImageID   = "image-id" // as the status shows it
	labelImage     = "image"
	labelGrace     = "grace" // the pod's terminationGracePeriodSeconds
	labelMessage   = "message-path"
	labelOwner     = "task"    // the UID of the pod's owner (part.Part); "task" is what existing nodes have stored
	labelSource    = "source"  // static.FromFile for a static pod
	labelFile      = "file"    // the name of a static pod's manifest file
	labelRound     = "round"   // see round; absent means 0
	labelBoot      = "boot"    // the machine's boot; absent means unknown
	labelAmounts   = "amounts" // the amounts at creation, as JSON
)

const (
	backOffFirst = 10 * time.Second
	backOffMax   = 5 * time.Minute
	// backOffReset is how long a container must have run for its back-off to be reset.
	backOffReset = 10 * time.Minute
)

// Instance is one run of a container of the pod.
type Instance struct {
	runtime.Container
	Name    string
	Attempt int
	BackOff time.Duration
	Hash    string
	Round   int
	Boot    string
}

func instanceOf(c runtime.Container) Instance {
	attempt, _ := strconv.Atoi(c.Labels[labelAttempt])
	wait, _ := time.ParseDuration(c.Labels[labelBackOff])
	round, _ := strconv.Atoi(c.Labels[labelRound])
	return Instance{
		Container: c,
		Name:      c.Labels[labelName],
		Attempt:   attempt,
		BackOff:   wait,
		Hash:      c.Labels[labelHash],
		Round:     round,
		Boot:      c.Labels[labelBoot],
	}
}

// Failure is why the last attempt of an action failed, and when it is retried.
type Failure struct {
	Reason, Message string
	Until           time.Time
	// wait is the delay that led to Until. The next failure doubles it.
	wait time.Duration
}

// LogValue implements slog.LogValuer.
func (f *Failure) LogValue() slog.Value {
	if f == nil {
		return slog.StringValue("none")
	}
	return slog.StringValue(f.Reason + ": " + f.Message)
}

// Health is the result of an instance's probes.
type Health struct {
	Started, Ready bool
	// Failed means that a liveness or startup probe failed, so the container must be restarted.
	Failed bool
	Why    string
	// Grace overrides the pod's grace period, in seconds.
	Grace *int64
}

// Verdict is why the agent fails a pod: it was rejected at admission, evicted, or exceeded its active deadline.
type Verdict struct {
	Reason, Message string
	// Evicted pods get a minimal grace period, and their containers are removed, since the node needs the resources.
	Evicted bool
	// Preempted means that an evicted pod makes room for a critical one. It keeps its own grace period.
	Preempted bool
	// Disrupted means that the pod was evicted because of node pressure, not for exceeding its own limits.
	Disrupted bool
}

// Observed is the state of a pod on the node.
type Observed struct {
	// Gone means that the pod is no longer in the API, or a static pod's manifest is gone.
	Gone bool
	// Deleted means that the agent has deleted the pod from the API. It stays there while it has finalizers.
	Deleted bool
	// Began is when the agent started. Boot identifies the machine's boot; empty means unknown.
	Began time.Time
	Boot  string
	// Waiting means that nothing may start: victims of the pod's preemption still run, or the machine shuts down.
	Waiting bool
	// By is when everything of the pod must have ended, whatever its grace period; zero means no such deadline.
	By time.Time
	// Draining means that the agent stops the node's pods: containers are stopped, and the pod stays in the API.
	Draining bool
	Verdict  *Verdict
	// Sandbox and Volumes are set up; Released: shared resources are released, and a deleted pod's containers removed.
	Sandbox, Volumes bool
	Released         bool
	// Claimed means that resource claims are prepared. Until they are unprepared, the pod must not be reported as
	// ended: other pods could get its devices.
	Claimed bool
	// Stale means that the volumes are mounted but their sources changed.
	Stale      bool
	Containers map[string][]Instance // by name, newest first
	// Busy holds the actions in flight, by target.
	Busy     map[string]Kind
	Failures map[string]Failure
	Health   map[string]Health // by container ID
	// Unallocated means that the specification requests other resources than the allocated ones.
	Unallocated bool
	// Share was granted for Generation. Limits are the pod cgroup's current ones, Amounts the instances', by ID.
	Share      share
	Generation int64
	Limits     runtime.PodLimits
	Amounts    map[string]amounts
	// Resizing means that the cgroups may not yet have the allocated resources.
	Resizing bool
	// Refresh is when a mounted token must be renewed; zero means never.
	Refresh time.Time

	podIP string
}

func (o Observed) latest(name string) *Instance {
	if l := o.Containers[name]; len(l) > 0 {
		return &l[0]
	}
	return nil
}

func (o Observed) anyBusy() bool { return len(o.Busy) > 0 }

func group(list []runtime.Container) map[string][]Instance {
	m := map[string][]Instance{}
	for _, c := range list {
		i := instanceOf(c)
		m[i.Name] = append(m[i.Name], i)
	}
	for _, l := range m {
		sort.Slice(l, func(a, b int) bool { return l[a].Attempt > l[b].Attempt })
	}
	return m
}

// specHash returns a hash of the fields whose change restarts a running container: its image.
func specHash(c *corev1.Container) string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s", c.Name, c.Image)
	return strconv.FormatUint(uint64(h.Sum32()), 16)
}

func changed(l *Instance, c *corev1.Container) bool { return l.Hash != "" && l.Hash != specHash(c) }

// nextBackOff returns the back-off of the instance that replaces c.
func nextBackOff(c *Instance) time.Duration {
	switch {
	case c == nil:
		return 0
	case !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) > backOffReset:
		return 0
	case c.BackOff == 0:
		return backOffFirst
	default:
		return min(2*c.BackOff, backOffMax)
	}
}

// waitOf returns the delay between the exit of c and the start of its replacement.
func waitOf(c *Instance) time.Duration {
	if !c.StartedAt.IsZero() && c.FinishedAt.Sub(c.StartedAt) > backOffReset {
		return 0
	}
	return c.BackOff
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func restarts(p *corev1.Pod, c *corev1.Container, exit int, init bool) bool {
	if c.RestartPolicy != nil {
		if ruleFor(c, exit) != "" { // any action restarts the container
			return true
		}
		switch *c.RestartPolicy {
		case corev1.ContainerRestartPolicyAlways:
			return true
		case corev1.ContainerRestartPolicyNever:
			return false
		default:
			return exit != 0
		}
	}
	switch p.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exit != 0
	default:
		return !init || exit != 0
	}
}

// restarts reports whether an exited instance is replaced. One that a probe ended is, whatever its exit code.
func (o Observed) restarts(p *corev1.Pod, c *corev1.Container, l *Instance, init bool) bool {
	return restarts(p, c, l.ExitCode, init) || o.Health[l.ID].Failed && restartsKilled(p, c)
}

// restartsKilled reports whether a container restarts that a probe ends. Restart rules are for exit codes of its own.
func restartsKilled(p *corev1.Pod, c *corev1.Container) bool {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy != corev1.ContainerRestartPolicyNever
	}
	return p.Spec.RestartPolicy != corev1.RestartPolicyNever
}

func isTerminal(p *corev1.Pod) bool { return hasEnded(p.Status.Phase) }

func hasEnded(p corev1.PodPhase) bool { return p == corev1.PodSucceeded || p == corev1.PodFailed }

func containerOf(p *corev1.Pod, name string) (c *corev1.Container, init, ephemeral bool) {
	for i := range p.Spec.Containers {
		if p.Spec.Containers[i].Name == name {
			return &p.Spec.Containers[i], false, false
		}
	}
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == name {
			return &p.Spec.InitContainers[i], true, false
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == name {
			return new(corev1.Container(p.Spec.EphemeralContainers[i].EphemeralContainerCommon)), false, true
		}
	}
	return nil, false, false
}

// logDirName returns the name of a pod's log directory, as in the kubelet.
func logDirName(p *corev1.Pod) string {
	return strings.Join([]string{p.Namespace, p.Name, string(p.UID)}, "_")
}

// podOfLogDir is the inverse of logDirName. It returns nil for other names.
func podOfLogDir(name string) *corev1.Pod {
	parts := strings.Split(name, "_") // names and UIDs cannot contain underscores
	if len(parts) != 3 || parts[2] == "" {
		return nil
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])}}
}
