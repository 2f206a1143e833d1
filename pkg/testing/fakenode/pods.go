package fakenode

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const pageSize = 500

// retryPeriod is the pause after a failed list or watch.
const retryPeriod = time.Second

type podKey struct {
	namespace, name string
	uid             types.UID
}

type task struct {
	podKey
	patch []byte // of the status; nil deletes the pod
}

// timers end pods that run for a limited time.
type timers struct {
	mu      sync.Mutex
	stopped bool
	pods    map[podKey]*time.Timer
}

func (t *timers) set(key podKey, after time.Duration, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, set := t.pods[key]; set || t.stopped {
		return
	}
	t.pods[key] = time.AfterFunc(after, func() {
		t.clear(key)
		f()
	})
}

func (t *timers) clear(key podKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if timer := t.pods[key]; timer != nil {
		timer.Stop()
		delete(t.pods, key)
	}
}

func (t *timers) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for key, timer := range t.pods {
		timer.Stop()
		delete(t.pods, key)
	}
}

// bound selects the pods that are bound to a node.
const bound = "spec.nodeName!="

// follow watches bound pods and gives the fake nodes' pods to the workers, until ctx is done.
func (n *Nodes) follow(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.listAndWatch(ctx); err != nil {
			n.failed(ctx, "list and watch pods", err)
			wait(ctx, retryPeriod)
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listAndWatch lists the pods once and watches them. It returns nil if they must be listed again.
func (n *Nodes) listAndWatch(ctx context.Context) error {
	version, err := n.list(ctx, func(p *corev1.Pod) { n.see(ctx, p) })
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		seconds := int64(300)
		w, err := n.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{
			FieldSelector:       bound,
			ResourceVersion:     version,
			AllowWatchBookmarks: true,
			TimeoutSeconds:      &seconds,
		})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return nil
			}
			return err
		}
		again, err := n.read(ctx, w, &version)
		w.Stop()
		if again || err != nil {
			return err
		}
	}
	return nil
}

// read reads a watch until it ends. It returns again if the pods must be listed again.
func (n *Nodes) read(ctx context.Context, w watch.Interface, version *string) (again bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-n.relist:
			wait(ctx, retryPeriod)
			return true, nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return false, nil
			}
			switch o := e.Object.(type) {
			case *corev1.Pod:
				*version = o.ResourceVersion
				if e.Type == watch.Deleted {
					n.timers.clear(podKey{o.Namespace, o.Name, o.UID})
				} else if e.Type != watch.Bookmark {
					n.see(ctx, o)
				}
			case *metav1.Status:
				if err := apierrors.FromObject(o); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
					return false, err
				}
				return true, nil
			}
		}
	}
}

// list calls f for all bound pods, and returns the resource version of the list.
func (n *Nodes) list(ctx context.Context, f func(*corev1.Pod)) (version string, err error) {
	for page := (metav1.ListOptions{FieldSelector: bound, Limit: pageSize}); ; {
		list, err := n.client.CoreV1().Pods("").List(ctx, page)
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			f(&list.Items[i])
		}
		if list.Continue == "" {
			return list.ResourceVersion, nil
		}
		page.Continue = list.Continue
	}
}

func (n *Nodes) has(p *corev1.Pod) bool {
	i, ok := n.number(p.Spec.NodeName)
	return ok && n.ours[i].Load()
}

// see does the next step for a pod. It blocks while all workers are busy.
func (n *Nodes) see(ctx context.Context, p *corev1.Pod) {
	if !n.has(p) {
		return
	}
	switch t, after, ok := n.plan(p, time.Now()); {
	case ok && after > 0:
		n.timers.set(t.podKey, after, func() { n.hand(ctx, t) })
	case ok:
		n.hand(ctx, t)
	}
}

func (n *Nodes) hand(ctx context.Context, t task) {
	select {
	case n.tasks <- t:
	case <-ctx.Done():
	}
}

func (n *Nodes) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-n.tasks:
			n.do(ctx, t)
		}
	}
}

func (n *Nodes) do(ctx context.Context, t task) {
	err := n.write(ctx, t)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // the pod is gone, or another pod has its name
		n.timers.clear(t.podKey)
	case err != nil:
		n.failed(ctx, "write pod "+t.namespace+"/"+t.name, err)
		select {
		case n.relist <- struct{}{}: // see gets the pod again
		default:
		}
	case t.patch == nil:
		n.timers.clear(t.podKey)
	}
}

func (n *Nodes) write(ctx context.Context, t task) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pods := n.client.CoreV1().Pods(t.namespace)
	if t.patch == nil {
		return pods.Delete(ctx, t.name, gone(t.uid))
	}
	_, err := pods.Patch(ctx, t.name, types.StrategicMergePatchType, t.patch, metav1.PatchOptions{}, "status")
	return err
}

// gone returns the options that delete a pod at once, as its node does when its containers have ended.
func gone(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid}}
}

// removePods deletes the pods on the nodes until none is left: the scheduler may still bind pods to nodes that have
// just been deleted.
func (n *Nodes) removePods(ctx context.Context) error {
	for {
		found, err := n.removePodsOnce(ctx)
		if err != nil || found == 0 {
			return err
		}
	}
}

func (n *Nodes) removePodsOnce(ctx context.Context) (found int, err error) {
	pods := make(chan podKey)
	errs := make([]error, podWorkers)
	var all sync.WaitGroup
	for w := range podWorkers {
		all.Go(func() {
			for p := range pods {
				err := n.client.CoreV1().Pods(p.namespace).Delete(ctx, p.name, gone(p.uid))
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					errs[w] = err
				}
			}
		})
	}
	_, err = n.list(ctx, func(p *corev1.Pod) {
		if n.has(p) {
			if p.DeletionTimestamp == nil {
				found++
			}
			pods <- podKey{p.Namespace, p.Name, p.UID}
		}
	})
	close(pods)
	all.Wait()
	return found, errors.Join(append(errs, err)...)
}
