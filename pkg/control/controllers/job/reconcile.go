// Package job runs the pods of a Job until enough of them have succeeded or too many have failed. Its invariants: each
// pod is counted at most once, and each pod that ends with the job's finalizer is counted, even if the process is
// killed at any time. At most parallelism pods are active. A finished job stays finished.
package job

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

var kind = batchv1.SchemeGroupVersion.WithKind("Job")

const (
	// writers is the number of pods of one job that are written concurrently.
	writers = 32
	// maxEvents limits the events about created pods in one call, and the events about deleted pods.
	maxEvents = 20
	// orphan is the kind of requests to remove the finalizer from a pod without a job.
	orphan = "orphan"
)

// New declares the reconciler.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "job", Workers: 4,
		Watches: []engine.Watch{
			{Object: &batchv1.Job{}, Event: jobs},
			{Object: &corev1.Pod{}, Event: pods},
		},
		Writes: []engine.Write{
			{Object: &batchv1.Job{}, Parts: []engine.Part{engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Create, engine.Delete, engine.Metadata, engine.Finalizers}},
		},
		Indexes: []engine.Index{
			engine.ByController(&corev1.Pod{}),
			{Object: &corev1.Pod{}, Name: podIndex, Values: podValues},
			{Object: &batchv1.Job{}, Name: jobIndex, Values: jobValues},
		},
		New: func(env engine.Env) engine.Func {
			return newReconciler(env, env.ByIndex).reconcile
		},
	}
}

// elsewhere reports whether another controller manages the job (KEP-4368).
func elsewhere(j *batchv1.Job) bool {
	return j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName
}

type reconciler struct {
	engine.Env
	find    finder
	writers int

	mu       sync.Mutex
	failures map[types.NamespacedName]failures // of unfinished jobs
}

func newReconciler(env engine.Env, find finder) *reconciler {
	return &reconciler{Env: env, find: find, writers: writers, failures: map[types.NamespacedName]failures{}}
}

type failures struct {
	uid types.UID
	Failures
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	if req.Kind == orphan {
		return engine.Result{}, r.releaseOrphan(ctx, req.NamespacedName)
	}
	var j batchv1.Job
	err := r.Cache.Get(ctx, req.NamespacedName, &j)
	if client.IgnoreNotFound(err) != nil {
		return engine.Result{}, err
	}
	all, err := r.pods(ctx, req.Namespace, podIndex, ofJob(req.Namespace, req.Name))
	if err != nil {
		return engine.Result{}, err
	}
	// Pods of a deleted job with the same name are not counted.
	own := func(p *corev1.Pod) bool { return j.UID != "" && metav1.GetControllerOfNoCopy(p).UID == j.UID }
	if err := r.untrack(ctx,
		slices.DeleteFunc(slices.Clone(all), func(p *corev1.Pod) bool { return own(p) || !tracked(p) })); err != nil {
		return engine.Result{}, err
	}
	if j.UID == "" || finished(&j) {
		r.forget(req.NamespacedName)
	}
	if j.UID == "" || elsewhere(&j) {
		return engine.Result{}, nil
	}
	o := Observed{Job: &j, Pods: slices.DeleteFunc(all, func(p *corev1.Pod) bool { return !own(p) })}
	if !finished(&j) {
		if err := r.observe(ctx, &o); err != nil {
			return engine.Result{}, err
		}
	}
	a, err := Plan(o, r.Now())
	if err != nil {
		return engine.Result{}, err
	}
	if err := r.apply(ctx, &j, a); err != nil {
		return engine.Result{}, err
	}
	if a.More {
		return engine.Result{RequeueAfter: time.Nanosecond}, nil
	}
	return engine.Result{RequeueAfter: a.Again}, nil
}

func (r *reconciler) observe(ctx context.Context, o *Observed) (err error) {
	adoptable := labeled(string(o.Job.UID))
	if ownSelector(o.Job) {
		adoptable = without(o.Job.Namespace)
	}
	if o.Orphans, err = r.pods(ctx, o.Job.Namespace, podIndex, adoptable); err != nil {
		return err
	}
	r.mu.Lock()
	known, ok := r.failures[client.ObjectKeyFromObject(o.Job)]
	r.mu.Unlock()
	if !ok || known.uid != o.Job.UID {
		all, err := r.pods(ctx, o.Job.Namespace, engine.ControllerIndex, string(o.Job.UID))
		if err != nil {
			return err
		}
		known = failures{o.Job.UID, rebuild(all)}
		r.remember(o.Job, known.Failures)
	}
	o.Failures = known.Failures
	return nil
}

func (r *reconciler) remember(j *batchv1.Job, f Failures) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures[client.ObjectKeyFromObject(j)] = failures{j.UID, f}
}

func (r *reconciler) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failures, key)
}

func (r *reconciler) pods(ctx context.Context, namespace, index, value string) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := r.find(ctx, &list, namespace, index, value); err != nil {
		return nil, err
	}
	return engine.Pointers(list.Items), nil
}

func (r *reconciler) apply(ctx context.Context, j *batchv1.Job, a Actions) error {
	if err := r.claim(ctx, j, a); err != nil {
		return err
	}
	failed := r.scale(ctx, j, &a)
	if !equality.Semantic.DeepEqual(a.Status, j.Status) {
		next := j.DeepCopy()
		next.Status = a.Status
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return errors.Join(failed, client.IgnoreNotFound(err))
		}
		for _, e := range a.Events {
			r.Events.Event(j, e.Type, e.Reason, "%s", e.Message)
		}
	}
	if !finished(j) {
		r.remember(j, a.Failures)
	}
	return errors.Join(failed, r.untrack(ctx, a.Untrack))
}

// claim adopts and releases pods. A conflict is retried.
func (r *reconciler) claim(ctx context.Context, j *batchv1.Job, a Actions) error {
	if slices.ContainsFunc(a.Adopt, func(p *corev1.Pod) bool { return metav1.GetControllerOfNoCopy(p) == nil }) {
		// The job may have been deleted and its name reused, so ask the server before adopting.
		if err := engine.Current(ctx, r.Client, j); err != nil {
			return err
		}
	}
	return r.parallel(len(a.Adopt)+len(a.Release), func(i int) error {
		var p, next *corev1.Pod
		if i < len(a.Adopt) {
			p = a.Adopt[i]
			next = p.DeepCopy()
			if metav1.GetControllerOfNoCopy(p) == nil {
				next.OwnerReferences = append(next.OwnerReferences, *metav1.NewControllerRef(j, kind))
			}
			if !tracked(p) {
				next.Finalizers = append(next.Finalizers, batchv1.JobTrackingFinalizer)
			}
		} else {
			p = a.Release[i-len(a.Adopt)]
			next = p.DeepCopy()
			next.OwnerReferences = slices.DeleteFunc(next.OwnerReferences, func(ref metav1.OwnerReference) bool {
				return ref.UID == j.UID
			})
			next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool {
				return f == batchv1.JobTrackingFinalizer
			})
		}
		return client.IgnoreNotFound(r.Client.Patch(ctx, next,
			client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{})))
	})
}

// scale discards, stops and creates pods, and corrects the status for pods whose creation or deletion failed.
func (r *reconciler) scale(ctx context.Context, j *batchv1.Job, a *Actions) error {
	var mu sync.Mutex
	var errs []error
	remove := slices.Concat(a.Discard, a.Stop)
	_ = r.parallel(len(remove), func(i int) error {
		p := remove[i]
		var err error
		if i < len(a.Discard) {
			err = r.untrackOne(ctx, p, p.ResourceVersion) // must be unchanged: an ended pod counts
		}
		if err == nil {
			err = r.Client.Delete(ctx, p, engine.Preconditions(p))
		}
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil && i < maxEvents:
			r.Events.Event(j, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", p.Name)
		case client.IgnoreNotFound(err) != nil:
			if len(errs) == 0 && !apierrors.IsConflict(err) {
				r.Events.Event(j, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
			}
			errs = append(errs, err)
			a.Status.Active++
			*a.Status.Terminating--
		}
		return nil
	})
	// Slow start in batches of 1, 2, 4 ...: if quota or admission rejects pods, only a few requests fail.
	created := 0
	for done, batch := 0, 1; done < len(a.Create) && len(errs) == 0; done, batch = done+batch, 2*batch {
		batch = min(batch, len(a.Create)-done)
		_ = r.parallel(batch, func(i int) error {
			p := newPod(j, a.Create[done+i])
			err := r.Client.Create(ctx, p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				if created++; done+i < maxEvents {
					r.Events.Event(j, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", p.Name)
				}
			case engine.Terminating(err): // the job will be deleted too
			default:
				r.Events.Event(j, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
				errs = append(errs, err)
			}
			return nil
		})
	}
	a.Status.Active -= int32(len(a.Create) - created)
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

func (r *reconciler) untrack(ctx context.Context, pods []*corev1.Pod) error {
	return r.parallel(len(pods), func(i int) error { return client.IgnoreNotFound(r.untrackOne(ctx, pods[i], "")) })
}

// untrackOne removes the finalizer from a pod. A version that is not empty must be the pod's resourceVersion.
func (r *reconciler) untrackOne(ctx context.Context, p *corev1.Pod, version string) error {
	if !tracked(p) {
		return nil
	}
	patch := `{"metadata":{"uid":"` + string(p.UID) + `","$deleteFromPrimitiveList/finalizers":["` +
		batchv1.JobTrackingFinalizer + `"]}}`
	if version != "" {
		patch = `{"metadata":{"resourceVersion":"` + version + `",` + patch[len(`{"metadata":{`):]
	}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
	err := r.Client.Patch(ctx, o, client.RawPatch(types.StrategicMergePatchType, []byte(patch)))
	if apierrors.IsConflict(err) && version == "" { // another pod has the name
		return apierrors.NewNotFound(corev1.Resource("pods"), p.Name)
	}
	return err
}

// releaseOrphan removes the finalizer from a pod that no job counts.
func (r *reconciler) releaseOrphan(ctx context.Context, key client.ObjectKey) error {
	var p corev1.Pod
	if err := r.Cache.Get(ctx, key, &p); err != nil {
		return client.IgnoreNotFound(err)
	}
	if metav1.GetControllerOfNoCopy(&p) != nil {
		return nil
	}
	if all, err := adopters(ctx, r.find, &p); err != nil || len(all) > 0 {
		return err
	}
	return client.IgnoreNotFound(r.untrackOne(ctx, &p, ""))
}

// parallel calls f for 0 to n-1 from up to r.writers goroutines, and returns the error with the lowest index.
func (r *reconciler) parallel(n int, f func(int) error) error {
	errs := make([]error, n)
	var next atomic.Int64
	work := func() {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			errs[i] = f(i)
		}
	}
	var wg sync.WaitGroup
	for range min(n, r.writers) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
