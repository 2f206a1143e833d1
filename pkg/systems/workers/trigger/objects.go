package trigger

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// A server watches objects for at most maxFollowers triggers, of which maxInNamespace are in one namespace. Further
	// triggers say so, and are tried again after limitAfter.
	maxFollowers   = 1000
	maxInNamespace = 100
	limitAfter     = time.Minute
	// maxEncoders bounds the objects that are encoded at a time, each of up to 1.5 MiB.
	maxEncoders = 8
	// Versions are written at most every busyPause while messages are sent, and every idlePause otherwise: more often than
	// the store compacts its history.
	busyPause = time.Second
	idlePause = time.Minute
)

// objects has a follower for each trigger with objects. Only Run's goroutine calls it.
type objects struct {
	*Config
	ctx context.Context //nolint:containedctx // Run's
	// changed has process called for a worker after a pause.
	changed  func(worker types.NamespacedName, pause time.Duration)
	of       map[types.NamespacedName]map[int]*follower // by the trigger's index
	all      sync.WaitGroup
	encoders chan struct{}
}

func newObjects(ctx context.Context, c *Config, changed func(types.NamespacedName, time.Duration)) *objects {
	return &objects{
		Config: c, ctx: ctx, changed: changed, of: map[types.NamespacedName]map[int]*follower{},
		encoders: make(chan struct{}, maxEncoders),
	}
}

// update starts and stops followers as the worker's triggers say, and adds their states to the status. A worker that is
// gone, or whose queue another server keeps, has no triggers here. It returns when to call it again; 0 means never.
func (o *objects) update(name types.NamespacedName, w *workers.Worker, status []workers.TriggerStatus) time.Duration {
	mine := o.of[name]
	for i, f := range mine {
		if f.w.UID == w.UID && i < len(status) {
			f.report(status[i].Objects, &status[i].Failure)
		}
		if !f.follows(w, i) {
			f.stop()
			delete(mine, i)
		}
	}
	again := time.Duration(0)
	for i := range status {
		if s := &status[i]; s.Objects == nil || mine[i] != nil {
			continue
		} else if s.Failure = o.full(name.Namespace); s.Failure != "" {
			again = limitAfter
			continue
		}
		if mine == nil {
			mine = map[int]*follower{}
			o.of[name] = mine
		}
		ctx, stop := context.WithCancel(o.ctx)
		f := &follower{objects: o, w: w.DeepCopy(), index: i, stop: stop, version: status[i].Objects.ResourceVersion}
		mine[i] = f
		o.all.Go(func() { o.Guard.Loop(ctx, "trigger", f.run) })
	}
	if len(mine) == 0 {
		delete(o.of, name)
	}
	return again
}

// full returns why no follower can be started for a namespace, or "".
func (o *objects) full(namespace string) string {
	all, there := 0, 0
	for name, list := range o.of {
		all += len(list)
		if name.Namespace == namespace {
			there += len(list)
		}
	}
	if all < maxFollowers && there < maxInNamespace {
		return ""
	}
	return fmt.Sprintf("too many triggers watch objects: %d of at most %d in the namespace, %d of at most %d in all: "+
		"remove one", there, maxInNamespace, all, maxFollowers)
}

// follower watches the objects of one trigger.
type follower struct {
	*objects
	w     *workers.Worker // when the follower began
	index int
	stop  context.CancelFunc

	// Only run uses the following fields. asked is when the permission was last checked. With gap, the history after
	// version is gone.
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource
	asked    time.Time
	gap      bool

	mu sync.Mutex
	// version is the resourceVersion up to which all changes are in the queue.
	version, failure string
	told             time.Time // when process was last called with a new version
}

func (f *follower) trigger() *workers.ObjectsTrigger { return f.w.Spec.Triggers[f.index].Objects }
func (f *follower) name() types.NamespacedName       { return ctrl.ObjectKeyFromObject(f.w) }
func (f *follower) account() string                  { return cmp.Or(f.w.Spec.ServiceAccountName, "default") }

// follows reports whether the follower does what a worker's trigger says.
func (f *follower) follows(w *workers.Worker, i int) bool {
	return f.w.UID == w.UID && i < len(w.Spec.Triggers) && f.w.Spec.ServiceAccountName == w.Spec.ServiceAccountName &&
		equality.Semantic.DeepEqual(f.trigger(), w.Spec.Triggers[i].Objects)
}

// report adds the follower's state to the status of a trigger, if that is for the same kind.
func (f *follower) report(s *workers.ObjectsStatus, failure *string) {
	if t := f.trigger(); s != nil && s.APIVersion == t.APIVersion && s.Kind == t.Kind {
		f.mu.Lock()
		defer f.mu.Unlock()
		s.ResourceVersion, *failure = f.version, f.failure
	}
}

func (f *follower) reached() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// reach records that all changes up to a version are in the queue.
func (f *follower) reach(version string, pause time.Duration) {
	f.mu.Lock()
	f.version = version
	wait := max(0, time.Until(f.told.Add(pause)))
	if wait == 0 {
		f.told = time.Now()
	}
	f.mu.Unlock()
	if wait <= busyPause {
		f.changed(f.name(), wait)
	}
}

// fail records why changes are not sent; empty means that they are. It does nothing if another server sends them.
func (f *follower) fail(ctx context.Context, text string) {
	text = bounded.Text(text, maxFailure)
	f.mu.Lock()
	was := f.failure
	f.failure = text
	f.mu.Unlock()
	if text != was {
		f.changed(f.name(), 0) // ends the follower if another server keeps the queue
	}
	if text != was && text != "" && !f.moved(ctx, f.name()) {
		f.Events.Event(f.w, corev1.EventTypeWarning, "TriggerFailed", "Changes of %s objects are not sent: %s", f.kind.Kind,
			text)
	}
}
