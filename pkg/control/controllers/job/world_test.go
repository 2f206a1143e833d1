package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/indexes"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/testing/assembled"
)

// world is an in-memory API with one job and its pods. It checks each write of the reconciler. The process may be
// killed after any write, and the cluster may change before each.
type world struct {
	client.Client // methods that the reconciler does not call
	t             *rapid.T
	job           *batchv1.Job
	pods          map[string]*corev1.Pod
	now           time.Time
	version, n    int
	writes        int
	left          int    // writes until the process is killed; negative means never
	before        func() // called before each write; may be nil

	entered map[types.UID]string // the status list in which a pod was counted
	dropped map[types.UID]bool   // pods discarded before they ended
}

var errKilled = errors.New("killed")

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	for _, p := range w.sorted() {
		w.t.Logf("pod %s phase %s tracked %v deleted %v %v", p.Name, p.Status.Phase, tracked(p), p.DeletionTimestamp != nil,
			p.Annotations)
	}
	status, _ := json.Marshal(w.job.Status)
	w.t.Logf("job %s", status)
	w.t.Fatalf(format, args...)
}

func (w *world) sorted() []*corev1.Pod {
	out := make([]*corev1.Pod, 0, len(w.pods))
	for _, p := range w.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (w *world) write() error {
	if w.left == 0 {
		return errKilled
	}
	if w.before != nil {
		f := w.before
		w.before = nil
		f()
		w.before = f
	}
	w.left--
	w.writes++
	return nil
}

func (w *world) touch(p *corev1.Pod) {
	w.version++
	p.ResourceVersion = strconv.Itoa(w.version)
	if p.DeletionTimestamp != nil && len(p.Finalizers) == 0 && (podstate.Ended(p) || p.Spec.NodeName == "") {
		delete(w.pods, p.Name)
	}
}

// set changes a pod as a node or a user would.
func (w *world) set(p *corev1.Pod, f func(*corev1.Pod)) {
	next := p.DeepCopy()
	f(next)
	w.pods[p.Name] = next
	w.touch(next)
}

func (w *world) Scheme() *runtime.Scheme { return clientgoscheme.Scheme }

func (w *world) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	switch o := o.(type) {
	case *batchv1.Job:
		*o = *w.job.DeepCopy()
		return nil
	case *corev1.Pod:
		if p := w.pods[key.Name]; p != nil {
			*o = *p.DeepCopy()
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("pods"), key.Name)
}

func (w *world) find(_ context.Context, list client.ObjectList, _, index, value string) error {
	out, ok := list.(*corev1.PodList)
	if !ok {
		return nil
	}
	values := podValues
	if index == engine.ControllerIndex {
		values = engine.ByController(&corev1.Pod{}).Values
	}
	for _, p := range w.sorted() {
		if slices.Contains(values(p), value) {
			out.Items = append(out.Items, *p.DeepCopy())
		}
	}
	return nil
}

func (w *world) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if err := w.write(); err != nil {
		return err
	}
	p := o.(*corev1.Pod).DeepCopy()
	w.n++
	p.Name = fmt.Sprintf("%s%04d", p.GenerateName, w.n)
	p.UID, p.CreationTimestamp, p.Status.Phase = types.UID(p.Name), metav1.NewTime(w.now), corev1.PodPending
	w.pods[p.Name] = p
	w.touch(p)
	*o.(*corev1.Pod) = *p.DeepCopy()
	active, indexes := 0, map[int]bool{}
	for _, p := range w.pods {
		if !podstate.Active(p) || metav1.GetControllerOf(p) == nil {
			continue
		}
		active++
		if indexed(w.job) {
			i := indexOf(p)
			if indexes[i] {
				w.fatalf("index %d has two active pods", i)
			}
			indexes[i] = true
		}
	}
	switch {
	case finished(w.job) || suspended(w.job):
		w.fatalf("created a pod of a finished or suspended job")
	case active > int(*w.job.Spec.Parallelism):
		w.fatalf("%d pods are active, at most %d may be", active, *w.job.Spec.Parallelism)
	case !tracked(p):
		w.fatalf("created a pod without finalizer")
	case indexed(w.job) && (indexOf(p) < 0 || indexOf(p) >= int(*w.job.Spec.Completions) || w.completed().Has(indexOf(p))):
		w.fatalf("created a pod for index %d", indexOf(p))
	}
	return nil
}

func (w *world) completed() indexes.Set {
	return indexes.Parse(w.job.Status.CompletedIndexes, int(*w.job.Spec.Completions))
}

func (w *world) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	if err := w.write(); err != nil {
		return err
	}
	p := w.pods[o.GetName()]
	if p == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), o.GetName())
	}
	if p.DeletionTimestamp == nil {
		w.remove(p)
	}
	return nil
}

func (w *world) remove(p *corev1.Pod) {
	w.set(p, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: w.now} })
}

func (w *world) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	if err := w.write(); err != nil {
		return err
	}
	was := w.pods[o.GetName()]
	if was == nil {
		return apierrors.NewNotFound(corev1.Resource("pods"), o.GetName())
	}
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var body struct{ Metadata metav1.ObjectMeta }
	if err := json.Unmarshal(data, &body); err != nil {
		return err
	}
	if v := body.Metadata.ResourceVersion; v != "" && v != was.ResourceVersion {
		return apierrors.NewConflict(corev1.Resource("pods"), o.GetName(), nil)
	}
	if patch.Type() != types.StrategicMergePatchType {
		next := o.(*corev1.Pod).DeepCopy()
		if tracked(next) {
			delete(w.dropped, was.UID)
		}
		w.set(was, func(p *corev1.Pod) { p.Finalizers, p.OwnerReferences = next.Finalizers, next.OwnerReferences })
		return nil
	}
	w.checkUntracked(was)
	w.set(was, func(p *corev1.Pod) { p.Finalizers = nil })
	return nil
}

// checkUntracked fails if an ended pod loses its finalizer before the status that counts it is written.
func (w *world) checkUntracked(p *corev1.Pod) {
	if !podstate.Ended(p) && w.entered[p.UID] == "" {
		w.dropped[p.UID] = true
		return
	}
	switch {
	case w.entered[p.UID] != "" || w.job.DeletionTimestamp != nil:
	case indexed(w.job) && indexOf(p) >= int(*w.job.Spec.Completions):
	case indexed(w.job) && p.Status.Phase == corev1.PodSucceeded &&
		(w.completed().Has(indexOf(p)) || w.job.Status.FailedIndexes != nil):
	case p.Status.Phase == corev1.PodFailed && !judge(w.job.Spec.PodFailurePolicy, p).counts():
	case is(w.job.Status.Conditions, batchv1.JobSuccessCriteriaMet) && p.DeletionTimestamp != nil: // abandoned
	default:
		w.fatalf("pod %s lost its finalizer uncounted", p.Name)
	}
}

func (w *world) Status() client.SubResourceWriter { return statusWriter{w: w} }

type statusWriter struct {
	client.SubResourceWriter
	w *world
}

func (s statusWriter) Update(_ context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if len(opts) > 0 { // the dry run of engine.Current
		return nil
	}
	w := s.w
	if err := w.write(); err != nil {
		return err
	}
	next := o.(*batchv1.Job).DeepCopy()
	if next.ResourceVersion != w.job.ResourceVersion {
		return apierrors.NewConflict(batchv1.Resource("jobs"), next.Name, nil)
	}
	w.validate(w.job, next)
	w.validate(next, roundTrip(next)) // a client may write back what it read
	was := w.job.Status
	for _, l := range []struct {
		name             string
		counter, before  int32
		listed, previous []types.UID
	}{
		{
			"succeeded", next.Status.Succeeded, was.Succeeded, next.Status.UncountedTerminatedPods.Succeeded,
			uncounted(&was).Succeeded,
		},
		{"failed", next.Status.Failed, was.Failed, next.Status.UncountedTerminatedPods.Failed, uncounted(&was).Failed},
	} {
		left := int32(0)
		for _, uid := range l.previous {
			if slices.Contains(l.listed, uid) {
				continue
			}
			left++
			if p := w.pods[string(uid)]; p != nil && tracked(p) {
				w.fatalf("pod %s was removed from the uncounted pods, but still has its finalizer", uid)
			}
		}
		if l.name == "failed" || !indexed(w.job) {
			if l.counter-l.before != left {
				w.fatalf("%s went from %d to %d, but %d pods were folded", l.name, l.before, l.counter, left)
			}
		}
		for _, uid := range l.listed {
			if !slices.Contains(l.previous, uid) {
				if was := w.entered[uid]; was != "" || w.dropped[uid] {
					w.fatalf("pod %s is counted as %s, and was %s", uid, l.name, was)
				}
				w.entered[uid] = l.name
			}
		}
	}
	w.version++
	next.ResourceVersion = strconv.Itoa(w.version)
	w.job = next
	return nil
}

func uncounted(s *batchv1.JobStatus) batchv1.UncountedTerminatedPods {
	if s.UncountedTerminatedPods == nil {
		return batchv1.UncountedTerminatedPods{}
	}
	return *s.UncountedTerminatedPods
}

// validate runs upstream's strategy, which rejects invalid transitions of a job's status.
func (w *world) validate(was, next *batchv1.Job) {
	row := assembled.Kinds().ByGVK(kind)
	in, err := row.Internal(next)
	old, err2 := row.Internal(was)
	if errors.Join(err, err2) != nil {
		w.fatalf("%v", errors.Join(err, err2))
	}
	if errs := row.Status.ValidateUpdate(context.Background(), in, old); len(errs) > 0 {
		w.fatalf("status is invalid: %v", errs.ToAggregate())
	}
	if finished(was) && !slices.Equal(conditionTypes(was), conditionTypes(next)) {
		w.fatalf("a finished job became unfinished")
	}
}

func roundTrip(j *batchv1.Job) *batchv1.Job {
	out := &batchv1.Job{}
	data, err := json.Marshal(j)
	if err = errors.Join(err, json.Unmarshal(data, out)); err != nil {
		panic(err)
	}
	return out
}

func conditionTypes(j *batchv1.Job) (out []string) {
	for _, c := range j.Status.Conditions {
		out = append(out, fmt.Sprint(c.Type, c.Status))
	}
	return out
}
