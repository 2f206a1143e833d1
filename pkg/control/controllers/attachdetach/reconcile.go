// Package attachdetach creates and deletes VolumeAttachments. They ask the controllers of CSI drivers to attach volumes
// to the nodes whose pods use them, and to detach them. Its invariants: a volume that a node may still have mounted is
// not detached, unless the node is gone, out of service, or unhealthy for six minutes. A volume for a single node is
// never attached to two.
package attachdetach

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

const (
	claimIndex = "spec.volumes.claim" // NAMESPACE/NAME of the claims of a pod
	nodeIndex  = "spec.nodeName"      // of VolumeAttachments
	pvIndex    = "spec.source"        // of VolumeAttachments
)

// New declares the reconciler. Its requests are nodes.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "attachdetach", Account: "attachdetach-controller",
		Watches: []engine.Watch{
			{Object: &corev1.Pod{}, Event: pods},
			{Object: &corev1.Node{}, Event: nodes},
			{Object: &corev1.PersistentVolumeClaim{}, Event: claims},
			{Object: &storagev1.VolumeAttachment{}, Event: attachments},
		},
		Reads: []client.Object{&corev1.PersistentVolume{}, &storagev1.CSIDriver{}},
		Writes: []engine.Write{
			{Object: &storagev1.VolumeAttachment{}, Parts: []engine.Part{engine.Create, engine.Delete}},
			{Object: &corev1.Node{}, Parts: []engine.Part{engine.Status}},
		},
		Indexes: []engine.Index{podstate.ByNode(),
			{Object: &corev1.Pod{}, Name: claimIndex, Values: func(o client.Object) []string {
				p, ok := o.(*corev1.Pod)
				if !ok {
					return nil
				}
				var out []string
				for _, name := range podstate.ClaimNames(p) {
					out = append(out, p.Namespace+"/"+name)
				}
				return out
			}},
			{Object: &storagev1.VolumeAttachment{}, Name: nodeIndex, Values: func(o client.Object) []string {
				if a, ok := o.(*storagev1.VolumeAttachment); ok {
					return []string{a.Spec.NodeName}
				}
				return nil
			}},
			{Object: &storagev1.VolumeAttachment{}, Name: pvIndex, Values: func(o client.Object) []string {
				if a, ok := o.(*storagev1.VolumeAttachment); ok && source(a) != "" {
					return []string{source(a)}
				}
				return nil
			}},
		},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{Env: env, unused: map[string]map[string]time.Time{}}).reconcile
		},
	}
}

// pods maps a pod with claims to its node when the pod is bound, ends or is deleted.
func pods(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Pod)
	after, _ := is.(*corev1.Pod)
	p := after
	if p == nil {
		p = before
	}
	if p == nil || p.Spec.NodeName == "" || len(podstate.ClaimNames(p)) == 0 {
		return nil
	}
	if before != nil && after != nil && before.Spec.NodeName == after.Spec.NodeName &&
		podstate.Ended(before) == podstate.Ended(after) {
		return nil
	}
	return []engine.Request{engine.RequestFor("", p.Spec.NodeName)}
}

// nodes maps a node to itself when its volumes in use, attached volumes, readiness or out-of-service taint change.
func nodes(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	after, _ := is.(*corev1.Node)
	switch {
	case after == nil:
		return []engine.Request{engine.RequestFor("", was.GetName())}
	case before == nil:
		if len(after.Status.VolumesAttached) == 0 {
			return nil // its pods and attachments cause events of their own
		}
	case equality.Semantic.DeepEqual(before.Status.VolumesInUse, after.Status.VolumesInUse) &&
		equality.Semantic.DeepEqual(before.Status.VolumesAttached, after.Status.VolumesAttached) &&
		nodestate.OutOfService(before) ==
			nodestate.OutOfService(after) && nodestate.Ready(before) == nodestate.Ready(after):
		return nil
	case len(after.Status.VolumesInUse)+len(after.Status.VolumesAttached)+len(before.Status.VolumesInUse)+
		len(before.Status.VolumesAttached) == 0:
		return nil
	}
	return []engine.Request{engine.RequestFor("", after.Name)}
}

// claims maps a claim that was just bound to the nodes of its pods.
func claims(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	after, _ := is.(*corev1.PersistentVolumeClaim)
	before, _ := was.(*corev1.PersistentVolumeClaim)
	if after == nil || after.Spec.VolumeName == "" ||
		before != nil && before.Spec.VolumeName != "" && before.Status.Phase == after.Status.Phase {
		return nil
	}
	return nodesOf(ctx, env, after.Namespace, after.Name)
}

// attachments maps an attachment to its node. A deleted one also maps to the nodes whose pods use the volume.
func attachments(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	a, _ := is.(*storagev1.VolumeAttachment)
	if a != nil {
		return []engine.Request{engine.RequestFor("", a.Spec.NodeName)}
	}
	a, _ = was.(*storagev1.VolumeAttachment)
	if a == nil {
		return nil
	}
	out := []engine.Request{engine.RequestFor("", a.Spec.NodeName)}
	var pv corev1.PersistentVolume
	if source(a) != "" && env.Cache.Get(ctx, client.ObjectKey{Name: source(a)}, &pv) == nil && pv.Spec.ClaimRef != nil {
		out = append(out, nodesOf(ctx, env, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)...)
	}
	return out
}

func nodesOf(ctx context.Context, env engine.Env, namespace, claim string) []engine.Request {
	var list corev1.PodList
	if env.ByIndex(ctx, &list, namespace, claimIndex, namespace+"/"+claim) != nil {
		return nil
	}
	var out []engine.Request
	for i := range list.Items {
		if node := list.Items[i].Spec.NodeName; node != "" {
			out = append(out, engine.RequestFor("", node))
		}
	}
	return out
}

type reconciler struct {
	engine.Env

	mu     sync.Mutex
	unused map[string]map[string]time.Time // when an attachment was first seen unused, by node and attachment name
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	o, users, err := r.observe(ctx, req.Name)
	if err != nil {
		return engine.Result{}, err
	}
	d := Plan(o, r.Now())
	r.remember(req.Name, d.Unused)
	if err := r.report(ctx, o.Node, d.Reported); err != nil {
		return engine.Result{}, err
	}
	for _, a := range d.Detach {
		if err := engine.Remove(ctx, r.Client, a); err != nil {
			return engine.Result{}, err
		}
	}
	for _, v := range d.Attach {
		a := &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: attachmentName(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle, req.Name)},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: v.Spec.CSI.Driver,
				NodeName: req.Name,
				Source:   storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		}
		if err := r.Client.Create(ctx, a); err != nil && !apierrors.IsAlreadyExists(err) {
			return engine.Result{}, err
		}
	}
	for _, v := range d.Blocked {
		for _, p := range users[v.Name] {
			r.Events.Event(p, corev1.EventTypeWarning, "FailedAttachVolume",
				"Multi-Attach error for volume %q Volume is already exclusively attached to one node and can't be attached to "+
					"another", v.Name)
		}
	}
	return engine.Result{RequeueAfter: d.Again}, nil
}

// remember records when attachments became unused. It forgets attachments that are in use again.
func (r *reconciler) remember(node string, unused []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, before := map[string]time.Time{}, r.unused[node]
	for _, name := range unused {
		at, seen := before[name]
		if !seen {
			at = r.Now()
		}
		now[name] = at
	}
	if len(now) == 0 {
		delete(r.unused, node)
		return
	}
	r.unused[node] = now
}

func (r *reconciler) report(ctx context.Context, n *corev1.Node, attached []corev1.AttachedVolume) error {
	if n == nil || equality.Semantic.DeepEqual(n.Status.VolumesAttached, attached) {
		return nil
	}
	next := n.DeepCopy()
	next.Status.VolumesAttached = attached
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, next,
		client.MergeFromWithOptions(n, client.MergeFromWithOptimisticLock{})))
}

// observe reads the state of a node's volumes. It also returns the pods that use each wanted volume.
func (r *reconciler) observe(ctx context.Context, name string) (Observed, map[string][]*corev1.Pod, error) {
	o := Observed{
		Name:      name,
		Wanted:    map[string]*corev1.PersistentVolume{},
		Elsewhere: map[string][]string{},
		Volumes:   map[string]*corev1.PersistentVolume{},
	}
	users := map[string][]*corev1.Pod{}
	r.mu.Lock()
	o.Since = r.unused[name]
	r.mu.Unlock()
	var err error
	if o.Node, err = engine.Find[corev1.Node](ctx, r.Cache, "", name); err != nil {
		return o, nil, err
	}
	var list corev1.PodList
	if err := r.ByIndex(ctx, &list, "", podstate.NodeIndex, name); err != nil {
		return o, nil, err
	}
	for i := range list.Items {
		p := &list.Items[i]
		if podstate.Ended(p) {
			continue
		}
		for _, claim := range podstate.ClaimNames(p) {
			v, err := r.volumeOf(ctx, p.Namespace, claim)
			if err != nil {
				return o, nil, err
			}
			if v != nil {
				o.Wanted[v.Name], users[v.Name] = v, append(users[v.Name], p)
			}
		}
	}
	var here storagev1.VolumeAttachmentList
	if err := r.ByIndex(ctx, &here, "", nodeIndex, name); err != nil {
		return o, nil, err
	}
	for i := range here.Items {
		a := &here.Items[i]
		if source(a) == "" {
			continue
		}
		o.Attachments = append(o.Attachments, a)
		v, err := r.volume(ctx, source(a))
		if err != nil {
			return o, nil, err
		}
		if v != nil {
			o.Volumes[v.Name] = v
		}
	}
	for pv := range o.Wanted {
		var all storagev1.VolumeAttachmentList
		if err := r.ByIndex(ctx, &all, "", pvIndex, pv); err != nil {
			return o, nil, err
		}
		for i := range all.Items {
			if node := all.Items[i].Spec.NodeName; node != name {
				o.Elsewhere[pv] = append(o.Elsewhere[pv], node)
			}
		}
	}
	return o, users, nil
}

// volumeOf returns the volume of a bound claim, or nil if it needs no attaching.
func (r *reconciler) volumeOf(ctx context.Context, namespace, claim string) (*corev1.PersistentVolume, error) {
	c, err := engine.Find[corev1.PersistentVolumeClaim](ctx, r.Cache, namespace, claim)
	if c == nil || c.Spec.VolumeName == "" || c.Status.Phase != corev1.ClaimBound {
		return nil, err
	}
	v, err := r.volume(ctx, c.Spec.VolumeName)
	if v == nil || err != nil || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID {
		return nil, err
	}
	// Upstream attaches volumes of unknown drivers, too.
	d, err := engine.Find[storagev1.CSIDriver](ctx, r.Cache, "", v.Spec.CSI.Driver)
	if err != nil || d != nil && d.Spec.AttachRequired != nil && !*d.Spec.AttachRequired {
		return nil, err
	}
	return v, nil
}

// volume returns a CSI volume, or nil if it does not exist or is not a CSI volume.
func (r *reconciler) volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	v, err := engine.Find[corev1.PersistentVolume](ctx, r.Cache, "", name)
	if v == nil || v.Spec.CSI == nil {
		return nil, err
	}
	return v, nil
}
