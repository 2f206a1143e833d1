package job

import (
	"cmp"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coracle-dev/coracle/pkg/engine/indexes"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

func (p *plan) classify() {
	waiting := p.fold()
	if indexed(p.Job) {
		p.completed = indexes.Parse(p.status.CompletedIndexes, p.completions)
	}
	if perIndex(p.Job) && p.status.FailedIndexes != nil {
		p.failedIndexes = indexes.Parse(*p.status.FailedIndexes, p.completions)
	}
	var newlyDone, newlyFailed []int
	for i := range p.members {
		m := &p.members[i]
		if indexed(p.Job) {
			m.index = indexOf(m.Pod)
		}
		switch {
		case podstate.Active(m.Pod):
			p.active = append(p.active, m)
		case !podstate.Ended(m.Pod):
			p.terminating = append(p.terminating, m)
		}
		switch m.outcome = p.outcomeOf(m, waiting); m.outcome {
		case success:
			newlyDone = append(newlyDone, m.index)
			p.newSucceeded = append(p.newSucceeded, m.Pod)
		case failure:
			m.judged = judge(p.Job.Spec.PodFailurePolicy, m.Pod)
			p.newFailed = append(p.newFailed, m.Pod)
		}
	}
	if indexed(p.Job) {
		p.completed = p.completed.With(newlyDone)
		p.succeeded = p.completed.Count()
	} else {
		p.succeeded = int(p.status.Succeeded) + len(p.status.UncountedTerminatedPods.Succeeded) + len(p.newSucceeded)
	}
	p.failed = int(p.status.Failed) + len(p.status.UncountedTerminatedPods.Failed)
	for i := range p.members {
		m := &p.members[i]
		if m.outcome != failure {
			continue
		}
		if m.judged.counts() {
			p.failed++
		}
		if p.indexFailed(m) {
			newlyFailed = append(newlyFailed, m.index)
		}
	}
	p.failedIndexes = p.failedIndexes.With(newlyFailed)
	if perIndex(p.Job) && p.verdict == nil {
		p.delay()
	}
}

// fold moves pods from status.uncountedTerminatedPods to the counters once they have lost their finalizer or are
// gone. It returns the remaining ones.
func (p *plan) fold() map[types.UID]bool {
	u := p.status.UncountedTerminatedPods
	if u == nil {
		u = &batchv1.UncountedTerminatedPods{}
		p.status.UncountedTerminatedPods = u
	}
	p.uncounted = make(map[types.UID]bool, len(u.Succeeded)+len(u.Failed))
	if len(u.Succeeded)+len(u.Failed) == 0 {
		return p.uncounted
	}
	with := make(map[types.UID]bool, len(p.members))
	for i := range p.members {
		if tracked(p.members[i].Pod) {
			with[p.members[i].UID] = true
		}
	}
	still := func(list []types.UID, counter *int32) []types.UID {
		var out []types.UID
		for _, uid := range list {
			if with[uid] {
				out = append(out, uid)
				p.uncounted[uid] = true
			} else {
				*counter++
			}
		}
		return out
	}
	u.Succeeded, u.Failed = still(u.Succeeded, &p.status.Succeeded), still(u.Failed, &p.status.Failed)
	return p.uncounted
}

func (p *plan) outcomeOf(m *member, waiting map[types.UID]bool) outcome {
	ended := podstate.Ended(m.Pod) || p.hasFailed(m.Pod)
	switch {
	case !tracked(m.Pod):
		return untracked
	case waiting[m.UID]:
		return counted
	case !ended:
		return unfinished
	case indexed(p.Job) &&
		(m.index == noIndex || m.index >= p.completions ||
			p.failedIndexes.Has(m.index) && m.Status.Phase == corev1.PodSucceeded):
		return ignored
	case m.Status.Phase == corev1.PodSucceeded:
		return success
	}
	return failure
}

// hasFailed reports whether a pod counts as failed. A terminating pod does, because it may disappear without
// reporting a phase, unless the job replaces pods only after they fail. In a failed job all terminating pods
// count, in a succeeded job none.
func (p *plan) hasFailed(pod *corev1.Pod) bool {
	switch {
	case pod.Status.Phase == corev1.PodFailed:
		return true
	case pod.DeletionTimestamp == nil || pod.Status.Phase == corev1.PodSucceeded:
		return false
	case p.verdict != nil:
		return p.verdict.Type == batchv1.JobFailureTarget
	}
	return !afterFailure(p.Job)
}

func (p *plan) indexFailed(m *member) bool {
	if !perIndex(p.Job) || p.completed.Has(m.index) {
		return false
	}
	before, _ := failuresOf(m.Pod)
	return m.judged.action == batchv1.PodFailurePolicyActionFailIndex ||
		m.judged.counts() && before >= int(*p.Job.Spec.BackoffLimitPerIndex)
}

// delay finds the failed pods that are in back-off: the last one of each index that will be retried.
func (p *plan) delay() {
	p.delayed = map[int]*member{}
	running := make(map[int]bool, len(p.active))
	for _, m := range p.active {
		running[m.index] = true
	}
	for i := range p.members {
		m := &p.members[i]
		if m.outcome != failure || running[m.index] || p.completed.Has(m.index) || p.failedIndexes.Has(m.index) {
			continue
		}
		if last := p.delayed[m.index]; last == nil || later(m.Pod, last.Pod) {
			p.delayed[m.index] = m
		}
	}
}

func later(a, b *corev1.Pod) bool {
	total := func(p *corev1.Pod) int { n, ignored := failuresOf(p); return n + ignored }
	return cmp.Or(cmp.Compare(total(a), total(b)), byFinish(a, b)) > 0
}

// count adds ended pods to the status, at most step of them, and determines which pods lose their finalizer.
func (p *plan) count() {
	u := p.status.UncountedTerminatedPods
	room := func() bool { return len(u.Succeeded)+len(u.Failed) < step }
	var succeeded, failed []*corev1.Pod
	for i := range p.members {
		m := &p.members[i]
		enters := m.outcome == success && !indexed(p.Job) || m.outcome == failure && m.judged.counts()
		switch {
		case m.outcome == untracked || m.outcome == unfinished && !p.abandoned(m) || p.delayed[m.index] == m:
			continue
		case enters && !room():
			p.More = true
			continue
		case !p.untrack(m.Pod):
			continue
		}
		switch m.outcome {
		case success:
			succeeded = append(succeeded, m.Pod)
			if enters {
				u.Succeeded = append(u.Succeeded, m.UID)
			}
		case failure:
			failed = append(failed, m.Pod)
			if enters {
				u.Failed = append(u.Failed, m.UID)
			}
		}
	}
	p.Actions.Failures = p.Observed.Failures.after(succeeded, failed)
	ready := int32(0)
	gone := map[types.UID]bool{}
	for _, pod := range slices.Concat(p.Discard, p.Stop) {
		gone[pod.UID] = true
	}
	for _, m := range p.active {
		if !gone[m.UID] && podstate.Ready(m.Pod) {
			ready++
		}
	}
	terminating := int32(len(p.terminating) + len(gone))
	p.status.Active = int32(len(p.active) - len(gone) + len(p.Create))
	p.status.Ready, p.status.Terminating = &ready, &terminating
	if indexed(p.Job) {
		p.status.CompletedIndexes = p.completed.String()
		p.status.Succeeded = int32(p.succeeded)
	}
	p.status.FailedIndexes = nil
	if perIndex(p.Job) {
		p.status.FailedIndexes = new(p.failedIndexes.String())
	}
}

// abandoned reports whether an unfinished pod will never be counted, because its job is being deleted or the pod
// was discarded when the job succeeded.
func (p *plan) abandoned(m *member) bool {
	return p.deleting || p.recorded && p.verdict.Type == batchv1.JobSuccessCriteriaMet && m.DeletionTimestamp != nil
}

// manage creates and discards pods to reach the desired number of active ones.
func (p *plan) manage() {
	if suspended(p.Job) {
		p.discard(p.active)
		return
	}
	want := int(*p.Job.Spec.Parallelism)
	if p.completions != noIndex {
		want = max(min(want, p.completions-p.succeeded), 0)
	} else if p.succeeded > 0 {
		want = len(p.active) // after the first success no pods are created
	}
	keep := p.active
	if indexed(p.Job) {
		keep = p.unique()
	}
	if excess := len(keep) - want; excess > 0 {
		slices.SortFunc(keep, func(a, b *member) int { return leastWork(a.Pod, b.Pod) })
		p.discard(keep[:excess])
	}
	if len(p.Discard) > 0 {
		return
	}
	missing := want - len(p.active)
	if afterFailure(p.Job) {
		missing -= len(p.terminating)
	}
	if missing <= 0 {
		return
	}
	if !perIndex(p.Job) {
		if left := p.Observed.Failures.after(p.newSucceeded, p.newFailed).left(p.now); left > 0 {
			p.again(left)
			return
		}
	}
	p.More = p.More || missing > step
	p.fill(min(missing, step))
}

func (p *plan) discard(list []*member) {
	for _, m := range list {
		if len(p.Discard) == step {
			p.More = true
			return
		}
		p.Discard = append(p.Discard, m.Pod)
	}
}

// unique discards active pods without a valid index and all but one for each index. It returns the others.
func (p *plan) unique() []*member {
	best := make(map[int]*member, len(p.active))
	var out, excess []*member
	for _, m := range p.active {
		was := best[m.index]
		switch {
		case m.index == noIndex || m.index >= p.completions:
			excess = append(excess, m)
		case was == nil:
			best[m.index] = m
		case leastWork(m.Pod, was.Pod) < 0:
			excess = append(excess, m)
		default:
			best[m.index] = m
			excess = append(excess, was)
		}
	}
	if len(excess) == 0 {
		return slices.Clone(p.active)
	}
	for _, m := range p.active {
		if best[m.index] == m {
			out = append(out, m)
		}
	}
	p.discard(excess)
	return out
}

// fill plans n new pods. An Indexed job's pods get the lowest indexes that are not completed, taken or in back-off.
func (p *plan) fill(n int) {
	if !indexed(p.Job) {
		for range n {
			p.Create = append(p.Create, Slot{Index: noIndex})
		}
		return
	}
	taken := make([]int, 0, len(p.active))
	for _, m := range p.active {
		taken = append(taken, m.index)
	}
	if afterFailure(p.Job) {
		for _, m := range p.terminating {
			if m.index != noIndex {
				taken = append(taken, m.index)
			}
		}
	}
	for i, m := range p.delayed {
		failed, ignored := failuresOf(m.Pod)
		if left := (Failures{InARow: int32(failed + ignored + 1), Last: finishedAt(m.Pod)}).left(p.now); left > 0 {
			taken = append(taken, i)
			p.again(left)
		}
	}
	for _, i := range p.completed.Union(p.failedIndexes).With(taken).Missing(n, p.completions) {
		s := Slot{Index: i}
		if m := p.delayed[i]; m != nil {
			s.Failed, s.Ignored = failuresOf(m.Pod)
			if m.judged.counts() {
				s.Failed++
			} else {
				s.Ignored++
			}
		}
		p.Create = append(p.Create, s)
	}
}

// rebuild computes the back-off from the counted pods after a restart of the reconciler.
func rebuild(pods []*corev1.Pod) Failures {
	var succeeded, failed []*corev1.Pod
	for _, pod := range pods {
		switch {
		case tracked(pod):
		case pod.Status.Phase == corev1.PodSucceeded:
			succeeded = append(succeeded, pod)
		case pod.Status.Phase == corev1.PodFailed:
			failed = append(failed, pod)
		}
	}
	return Failures{}.after(succeeded, failed)
}
