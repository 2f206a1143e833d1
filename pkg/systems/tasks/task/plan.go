package task

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	tasks "github.com/coracle-dev/coracle/apis/tasks/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine/indexes"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// Observed is the input of Plan.
type Observed struct {
	Task *tasks.Task
	// Pods are the pods that the task controls.
	Pods []*corev1.Pod
	// Heard holds the last heartbeat of each node of the pods. A node without an entry was deleted.
	Heard map[string]Heartbeat
	// Rejected holds the errors of pods that the API server refused, by the pods' names.
	Rejected map[string]string
	// Quota is why a quota refuses further pods of the task at present, or "".
	Quota string
	// After are the tasks that spec.after names, by name; those that do not exist have no entry. Cycle is the chain of
	// tasks through which the task waits for itself, or "".
	After map[string]*tasks.Task
	Cycle string
	// Deleted are the deleted nodes among the targets of pods without a node.
	Deleted map[string]bool
	// Targets returns the nodes for an array with everyNode, sorted by name.
	Targets func() []string
}

// Heartbeat is the time of a node's last heartbeat, and how long the node may be silent.
type Heartbeat struct {
	At       time.Time
	Patience time.Duration
}

// Actions are the writes of a plan, in this order.
type Actions struct {
	// Create are attempts whose pods are to be created. The next Plan recognizes these pods even if Status is not
	// written.
	Create []tasks.TaskAttempt
	Status tasks.TaskStatus
	// Release are the pods of attempts that have ended in Status. Their finalizer is removed, and they are deleted.
	Release []*corev1.Pod
	// Expired means that the task must be deleted, because its ttlSecondsAfterFinished has passed.
	Expired bool
	// Again is the time until the next action is due; 0 means never.
	Again time.Duration
}

// Plan returns the next actions. It does not modify o.
func Plan(o Observed, now time.Time) Actions {
	p := &plan{Observed: o, now: now, spec: &o.Task.Spec}
	p.Status = *o.Task.Status.DeepCopy()
	p.Status.Phase = cmp.Or(p.Status.Phase, tasks.TaskPending)
	if p.Status.CreatedAt == nil && !o.Task.CreationTimestamp.IsZero() {
		p.Status.CreatedAt = o.Task.CreationTimestamp.DeepCopy()
	}
	switch {
	case o.Task.Status.Phase.Ended():
		p.expire()
	case o.Task.DeletionTimestamp == nil:
		p.load()
		p.follow()
		for p.adopt() { // retries that have begun
			p.follow()
		}
		switch {
		case p.spec.Cancel:
			p.cancel()
		case p.may():
			p.fill()
		}
		p.store()
	case slices.Contains(o.Task.Finalizers, metav1.FinalizerOrphanDependents):
		return p.Actions // its pods will have no owner
	}
	p.release()
	return p.Actions
}

type plan struct {
	Observed
	Actions
	spec *tasks.TaskSpec
	now  time.Time

	ended, active []tasks.TaskAttempt
	// completed and failed are the ended indexes. A task without an array is treated as an array with the index 0.
	completed, failed indexes.Set
	// nodes are the nodes on which attempts of an array have ended.
	nodes []string
	// targets are the nodes of an array with everyNode, once they are known.
	targets []string
	// cancelled means that the cancellation ended or prevented an attempt.
	cancelled bool
	// blocked is why no attempt has begun yet, and prevented why none can ever, with its reason.
	blocked, prevented, reason string
}

// within reports whether the time at has passed. If not, it shortens Again to the time until then.
func (p *plan) within(at time.Time) (passed bool) {
	left := at.Sub(p.now)
	if left <= 0 {
		return true
	}
	if p.Again == 0 || left < p.Again {
		p.Again = left
	}
	return false
}

// exceeds reports whether the time since began surely exceeds a limit. The API truncates times to seconds, so began
// was up to a second later.
func (p *plan) exceeds(began time.Time, limit time.Duration) bool {
	return p.within(began.Add(limit + time.Second))
}

func (p *plan) expire() {
	ttl, end := p.spec.TTLSecondsAfterFinished, p.Status.FinishedAt
	if ttl == nil || end == nil || p.Task.DeletionTimestamp != nil {
		return
	}
	p.Expired = p.within(end.Add(time.Duration(*ttl) * time.Second))
}

func (p *plan) size() int {
	switch {
	case p.spec.Array == nil:
		return 1
	case p.spec.Array.EveryNode:
		return len(p.targets)
	}
	return int(p.spec.Array.Size)
}

func (p *plan) parallelism() int {
	if p.spec.Array == nil {
		return 1
	}
	if n := p.spec.Array.Parallelism; n != nil {
		return int(*n)
	}
	return tasks.DefaultParallelism
}

func index(a *tasks.TaskAttempt) int {
	if a.Index == nil {
		return 0
	}
	return int(*a.Index)
}

// of returns the index and the attempt number of a pod.
func of(p *corev1.Pod) (index, number int) {
	index, _ = strconv.Atoi(p.Labels[tasks.LabelIndex])
	number, _ = strconv.Atoi(p.Labels[tasks.LabelAttempt])
	return index, number
}

// load reads the attempts and the ended indexes from the status. It recognizes first attempts whose creation was not
// recorded.
func (p *plan) load() {
	for _, a := range p.Status.Attempts {
		if a.Phase.Ended() {
			p.ended = append(p.ended, a)
		} else {
			p.active = append(p.active, a)
		}
	}
	if a := p.Status.Array; a != nil {
		p.targets = a.Targets
		p.completed, p.failed = indexes.Parse(a.CompletedIndexes, p.size()), indexes.Parse(a.FailedIndexes, p.size())
		p.nodes = a.Nodes
	}
	for _, pod := range p.Pods {
		if i, number := of(pod); number == 1 && i < p.size() && p.find(i) == nil && !p.completed.Has(i) && !p.failed.Has(i) &&
			(p.spec.Array != nil || len(p.ended) == 0) {
			p.begin(i, 1)
		}
	}
	p.adopt()
}

// adopt finds the pods of attempts whose creation was not recorded.
func (p *plan) adopt() (found bool) {
	for _, pod := range p.Pods {
		i, number := of(pod)
		if a := p.find(i); a != nil && int(a.Number) == number && a.PodUID == "" {
			a.Pod, a.PodUID = pod.Name, pod.UID
			a.CreatedAt = pod.CreationTimestamp.DeepCopy()
			found = true
		}
	}
	return found
}

func (p *plan) find(i int) *tasks.TaskAttempt {
	at := slices.IndexFunc(p.active, func(a tasks.TaskAttempt) bool { return index(&a) == i })
	if at < 0 {
		return nil
	}
	return &p.active[at]
}

func (p *plan) begin(i int, number int32) *tasks.TaskAttempt {
	a := tasks.TaskAttempt{Number: number, Phase: tasks.TaskPending}
	if p.spec.Array != nil {
		a.Index = new(int32(i))
	}
	p.active = append(p.active, a)
	return &p.active[len(p.active)-1]
}

// follow updates the attempts from their pods, ends them, and begins retries.
func (p *plan) follow() {
	var retries []tasks.TaskAttempt
	going := p.active[:0]
	for _, a := range p.active {
		retry := p.one(&a)
		if !a.Phase.Ended() {
			going = append(going, a)
			continue
		}
		p.end(a)
		switch i := index(&a); {
		case a.Phase == tasks.TaskCompleted:
			p.completed = p.completed.With([]int{i})
		case retry && a.Number <= p.spec.Retries:
			next := tasks.TaskAttempt{Number: a.Number + 1, Index: a.Index, Phase: tasks.TaskPending}
			from := p.now
			if end := p.ended[len(p.ended)-1].FinishedAt; end.Time.Before(from) { // the node's clock may be fast
				from = end.Time
			}
			next.NotBefore = new(metav1.NewTime(from.Add(Backoff(p.spec, a.Number))))
			retries = append(retries, next)
		default:
			p.failed = p.failed.With([]int{i})
		}
	}
	p.active = append(going, retries...)
}

func (p *plan) end(a tasks.TaskAttempt) {
	if a.FinishedAt == nil {
		a.FinishedAt = new(metav1.NewTime(p.now))
	}
	if len(a.Message) > tasks.MaxMessage {
		a.Message = a.Message[:tasks.MaxMessage]
	}
	if a.Node != "" && len(p.nodes) < tasks.MaxNodes && !slices.Contains(p.nodes, a.Node) {
		p.nodes = append(p.nodes, a.Node)
	}
	p.ended = append(p.ended, a)
	p.Status.EndedAttempts++
}

// longestBackoff bounds the doubling of the pause between attempts.
const longestBackoff = 5 * time.Minute

// Backoff returns the pause after the failure of the attempt with this number.
func Backoff(s *tasks.TaskSpec, number int32) time.Duration {
	first := time.Second
	if s.BackoffSeconds != nil {
		first = time.Duration(*s.BackoffSeconds) * time.Second
	}
	d := first
	for range number - 1 {
		if d *= 2; d >= longestBackoff {
			return max(first, longestBackoff)
		}
	}
	return d
}

func (p *plan) cancel() {
	p.cancelled = p.completed.Count()+p.failed.Count() < p.size() || p.size() == 0
	for _, a := range p.active {
		p.failed = p.failed.With([]int{index(&a)})
		if a.PodUID == "" && a.Number > 1 {
			continue // a retry that has not begun
		}
		fail(&a, tasks.ReasonCancelled, cancelledMessage)
		p.end(a)
	}
	p.active = nil
}

// may reports whether attempts may begin: the tasks before have ended as required, and the targets are known.
func (p *plan) may() bool {
	if len(p.active) > 0 || len(p.ended) > 0 {
		return true
	}
	for _, a := range p.spec.After {
		if slices.Contains(p.Status.After, a.Name) {
			continue
		}
		before := p.After[a.Name]
		switch {
		case before == nil:
			p.blocked = cmp.Or(p.blocked, fmt.Sprintf("waits for task %s, which does not exist", a.Name))
		case !before.Status.Phase.Ended():
			p.blocked = cmp.Or(p.blocked, fmt.Sprintf("waits for task %s to end", a.Name))
		case a.Condition == tasks.AfterSucceeded && before.Status.Phase == tasks.TaskFailed,
			a.Condition == tasks.AfterFailed && before.Status.Phase == tasks.TaskCompleted:
			p.prevented, p.reason = fmt.Sprintf("task %s has %s, and this task starts only if it has %s", a.Name,
				strings.ToLower(string(before.Status.Phase)), strings.ToLower(string(a.Condition))), tasks.ReasonAfterFailed
			return false
		default:
			p.Status.After = append(p.Status.After, a.Name)
		}
	}
	if p.Cycle != "" {
		p.blocked = "waits for itself: " + p.Cycle
	}
	if p.blocked == "" && p.spec.Array != nil && p.spec.Array.EveryNode && len(p.targets) == 0 && !p.spec.Suspend {
		switch p.targets = p.Targets(); {
		case len(p.targets) > tasks.MaxTargets:
			p.reason = tasks.ReasonTooManyNodes
			p.prevented = fmt.Sprintf("it would run on %d nodes, and at most %d are possible: choose them with nodeSelector",
				len(p.targets), tasks.MaxTargets)
			p.targets = nil
		case len(p.targets) == 0:
			p.blocked = "no node has the labels of nodeSelector and only taints that the task tolerates"
		}
		return false // the targets are recorded first, because the pods' indexes refer to them
	}
	return p.blocked == "" && p.prevented == ""
}

// fill begins more indexes, and creates the pods of attempts that are due.
func (p *plan) fill() {
	if p.spec.Suspend {
		return
	}
	if free := p.parallelism() - len(p.active); free > 0 {
		taken := make([]int, len(p.active))
		for i := range p.active {
			taken[i] = index(&p.active[i])
		}
		for _, i := range p.completed.Union(p.failed).With(taken).Missing(free, p.size()) {
			p.begin(i, 1)
		}
	}
	for i := range p.active {
		a := &p.active[i]
		if a.PodUID == "" {
			a.Message = p.Quota
		}
		if a.PodUID != "" || a.NotBefore != nil && !p.within(a.NotBefore.Time) || p.busy(a) {
			continue
		}
		p.Create = append(p.Create, *a)
	}
}

// busy reports whether a pod of an earlier attempt of the index may still run. Pods on lost nodes do not count, since
// losing them is the reason for the retry.
func (p *plan) busy(a *tasks.TaskAttempt) bool {
	return slices.ContainsFunc(p.Pods, func(pod *corev1.Pod) bool {
		i, number := of(pod)
		return i == index(a) && number < int(a.Number) && !over(pod) && pod.Spec.NodeName != "" && !p.lost(pod.Spec.NodeName)
	})
}

func over(pod *corev1.Pod) bool {
	return podstate.Ended(pod) || mainContainer(pod).State.Terminated != nil
}

// lost reports whether a node was deleted or has been silent for too long.
func (p *plan) lost(node string) bool {
	last, there := p.Heard[node]
	return !there || p.within(last.At.Add(last.Patience))
}

// release collects the pods that belong to no active attempt.
func (p *plan) release() {
	for _, pod := range p.Pods {
		i, number := of(pod)
		if a := p.find(i); a != nil && int(a.Number) == number && a.PodUID == pod.UID {
			continue
		}
		p.Release = append(p.Release, pod)
	}
}
