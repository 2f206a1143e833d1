package fakenode

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// revive reports lost nodes ready again, as the kubelet does: heartbeats alone do not, and they can be late on a
// busy machine. It returns when ctx is done.
func (n *Nodes) revive(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[int]())
	seen := func(o any) {
		node, ok := o.(*corev1.Node)
		if !ok || len(node.Status.Conditions) == 0 {
			return
		}
		if i, ok := n.number(node.Name); ok && n.ours[i].Load() {
			queue.Add(i)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewFilteredListWatchFromClient(n.client.CoreV1().RESTClient(), "nodes", "",
			func(o *metav1.ListOptions) { o.LabelSelector = n.selector() }),
		ObjectType: &corev1.Node{}, Transform: lostOnly,
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, o any) { seen(o) }},
	})
	var worker sync.WaitGroup
	defer worker.Wait()
	defer queue.ShutDown()
	worker.Go(func() {
		for i, end := queue.Get(); !end; i, end = queue.Get() {
			if err := n.ready(ctx, i); err != nil {
				n.failed(ctx, "report "+n.name(i)+" ready", err)
				queue.AddRateLimited(i)
			} else {
				queue.Forget(i)
			}
			queue.Done(i)
		}
	})
	informer.RunWithContext(ctx)
}

// lostOnly reduces a cached node to its name, and to its Ready condition if that is not true.
func lostOnly(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	small := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			small.Status.Conditions = []corev1.NodeCondition{c}
		}
	}
	return small, nil
}

func (n *Nodes) ready(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	node, err := n.client.CoreV1().Nodes().Get(ctx, n.name(i), metav1.GetOptions{})
	if err == nil {
		_, err = n.adopt(ctx, node, i)
	}
	if apierrors.IsNotFound(err) {
		return nil // deleted by another client
	}
	return err
}
