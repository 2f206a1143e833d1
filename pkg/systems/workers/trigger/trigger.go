// Package trigger sends the messages of workers' triggers (spec.triggers): at the times of schedules and for changes of
// objects. It also decides which server reads their NATS subjects. It runs on every server; the server that keeps a
// worker's queue sends.
//
// Its invariant: a time or a version is in the worker's status only after its message is in the queue. A server that is
// killed in between sends the message again with the same DedupID, which the queue refuses within queue.Window.
package trigger

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/base/run"
	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/client/events"
	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
	"github.com/coracle-dev/coracle/pkg/systems/workers/subject"
)

// Config configures Run. All fields are required, except Events and Guard.
type Config struct {
	// Client reads workers, writes their status, watches the objects of triggers and checks permissions.
	Client client.Interface
	// Send queues a message of a worker. Repeating it is safe.
	Send func(ctx context.Context, worker types.NamespacedName, m queue.Message) error
	// Elsewhere reports whether another server keeps the worker's queue.
	Elsewhere func(ctx context.Context, w *workers.Worker) bool
	// Home makes this server the one that keeps the worker's queue, unless another one does.
	Home     func(ctx context.Context, w *workers.Worker) error
	Subjects *subject.Subjects
	Events   *events.Recorder
	Guard    *run.Guard
	Logger   *slog.Logger
	// Only tests set these: retry replaces retryAfter for objects, and ask replaces askEvery.
	retry, ask time.Duration
}

const (
	// retryAfter is the pause after a message was refused, for example by a full queue.
	retryAfter = 10 * time.Second
	maxFailure = 512 // bytes
)

// Run sends messages until ctx is done.
func Run(ctx context.Context, c Config) error {
	list := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]())
	defer list.ShutDown()
	ctx, stop := context.WithCancel(ctx)
	objects := newObjects(ctx, &c, list.AddAfter)
	defer objects.all.Wait()
	defer stop()
	see := func(o any) {
		if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
			o = last.Obj
		}
		if w, ok := o.(*workers.Worker); ok && w != nil && len(w.Spec.Triggers)+len(w.Status.Triggers) > 0 {
			list.Add(ctrl.ObjectKeyFromObject(w))
		}
	}
	end, err := client.Follow(ctx, c.Client.Cache(), &workers.Worker{}, toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, DeleteFunc: see, UpdateFunc: func(was, is any) {
			before, _ := was.(*workers.Worker)
			after, ok := is.(*workers.Worker)
			if ok && (before == nil || before.Generation != after.Generation ||
				before.Status.QueueServer != after.Status.QueueServer) {
				see(before)
				see(after)
			}
		},
	})
	if err != nil {
		return err
	}
	defer end()
	// The queue of a server that is lost may be kept here from now on.
	unfollow, err := client.Follow(ctx, c.Client.Cache(), &corev1.Node{}, toolscache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) {
			var all workers.WorkerList
			if err := c.Client.Cache().List(ctx, &all); err != nil {
				c.Logger.Warn("could not list workers after a node was deleted", "error", err)
			}
			for i := range all.Items {
				see(&all.Items[i])
			}
		},
	})
	if err != nil {
		return err
	}
	defer unfollow()
	c.Subjects.Notify(func(w types.NamespacedName) { list.Add(w) })
	defer context.AfterFunc(ctx, list.ShutDown)()
	for {
		name, down := list.Get()
		if down {
			return nil
		}
		again, err := c.process(ctx, name, objects)
		list.Done(name)
		switch {
		case err != nil && ctx.Err() == nil:
			c.Logger.Warn("could not write the triggers' status, retrying", "worker", name, "error", err)
			list.AddRateLimited(name)
			continue
		case again > 0:
			list.AddAfter(name, again)
		}
		list.Forget(name)
	}
}

// process sends the messages of a worker that are due, and returns when to call it again.
func (c *Config) process(ctx context.Context, name types.NamespacedName, o *objects) (again time.Duration, err error) {
	var w workers.Worker
	err = c.Client.Cache().Get(ctx, name, &w)
	if apierrors.IsNotFound(err) || err == nil && w.DeletionTimestamp != nil {
		c.Subjects.Stop(name, true)
		o.update(name, &workers.Worker{}, nil)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	a := plan(&w, time.Now())
	if c.Elsewhere(ctx, &w) {
		c.Subjects.Stop(name, false)
		o.update(name, &workers.Worker{}, nil)
		return a.again, nil // if that server is lost, this one sends from the next time on
	}
	if err := c.setSubjects(ctx, &w, a.status); err != nil {
		return 0, err
	}
	if again := o.update(name, &w, a.status); again > 0 && (a.again == 0 || again < a.again) {
		a.again = again
	}
	for _, m := range a.due {
		s := &a.status[m.trigger]
		err := c.Send(ctx, name, m.Message)
		if ctx.Err() != nil {
			return 0, nil
		}
		if err != nil && c.moved(ctx, name) {
			return a.again, nil
		}
		if err != nil {
			s.Failure = bounded.Text(err.Error(), maxFailure)
			c.Events.Event(&w, corev1.EventTypeWarning, "TriggerFailed", "The message of schedule %q for %s was not queued: %s",
				s.Schedule, m.at.Format(time.RFC3339), s.Failure)
			if a.again == 0 || retryAfter < a.again {
				a.again = retryAfter
			}
			continue
		}
		s.Failure = ""
		sent := metav1.NewTime(m.at)
		s.LastScheduleTime = &sent
	}
	return a.again, c.write(ctx, &w, a.status)
}

// moved reports whether another server has begun to keep the worker's queue.
func (c *Config) moved(ctx context.Context, name types.NamespacedName) bool {
	var w workers.Worker
	return c.Client.Cache().Get(ctx, name, &w) == nil && c.Elsewhere(ctx, &w)
}

func (c *Config) write(ctx context.Context, w *workers.Worker, is []workers.TriggerStatus) error {
	if equality.Semantic.DeepEqual(is, w.Status.Triggers) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"triggers": is}})
	if err != nil {
		return err
	}
	err = c.Client.Status().Patch(ctx, w.DeepCopy(), ctrl.RawPatch(types.MergePatchType, patch))
	return ctrl.IgnoreNotFound(err)
}
