// Package localsnapshot takes and removes snapshots of the volumes that Coracle provisions on nodes, and creates
// volumes as copies of such snapshots or of other volumes. It corresponds to csi-snapshotter and external-provisioner
// for CSI drivers. Its invariants: a node copies only for an existing object, which remains until the copy is removed.
// Requests to nodes may be repeated. A claim is bound to a copy only once the copy is complete and on disk.
package localsnapshot

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	helpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	snapshots "github.com/coracle-dev/coracle/apis/snapshots/v1"
	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
)

// Nodes makes nodes copy. Each call may be repeated and ends with its context. A node that has no free copy slot
// returns storage.ErrBusy. copied is called with the number of bytes so far.
type Nodes interface {
	// Take takes a snapshot of a volume with a size in bytes, or returns the existing one.
	Take(ctx context.Context, n *corev1.Node, snapshot, volume string, size int64,
		copied func(uint64)) (storage.Snapshot, error)
	// Find returns the node's record of a snapshot.
	Find(ctx context.Context, n *corev1.Node, snapshot string) (storage.Snapshot, error)
	// Remove removes a snapshot. It succeeds if there is none.
	Remove(ctx context.Context, n *corev1.Node, snapshot string) error
	// Fill creates a volume's directory with the contents of source, a snapshot or a volume as kind says, unless
	// the directory exists.
	Fill(ctx context.Context, n *corev1.Node, volume, kind, source string, size int64, copied func(uint64)) error
	// Discard removes a volume's directory. It succeeds if there is none.
	Discard(ctx context.Context, n *corev1.Node, volume string) error
}

// sourceIndex finds claims that wait for a copy by KIND/NAME of the source, and all such claims by anySource.
const (
	sourceIndex = "claim.copyOf"
	anySource   = "any"
)

// ofKindVolume is the kind of requests for volumes.
const ofKindVolume = "volume"

const (
	// copies is the maximum number of concurrent requests to all nodes.
	copies = 16
	// again is the retry interval for a node that is busy with copies of another server.
	again = 10 * time.Second
)

// New declares the reconciler. Its requests are contents, volumes (ofKindVolume), and claims (with a
// namespace). nodes may be nil if nodes cannot be reached.
func New(nodes Nodes) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "localsnapshot", Account: "volumesnapshotcontent-controller", Workers: copies,
		Watches: []engine.Watch{
			{Object: &snapshots.VolumeSnapshotContent{}, Map: ofContent},
			{Object: &snapshots.VolumeSnapshot{}, Map: ofSource(storage.FromSnapshot)},
			{Object: &corev1.PersistentVolumeClaim{}, Map: ofClaim},
			{Object: &corev1.PersistentVolume{}, Map: ofVolume},
			{Object: &corev1.Node{}, Event: ofNode},
			{Object: &storagev1.StorageClass{}, Map: ofClass},
		},
		Writes: []engine.Write{
			{
				Object: &snapshots.VolumeSnapshotContent{}, Parts: []engine.Part{engine.Metadata, engine.Finalizers, engine.Status},
			},
			{Object: &corev1.PersistentVolume{}, Parts: []engine.Part{engine.Create, engine.Metadata}},
		},
		Indexes: []engine.Index{
			{Object: &corev1.PersistentVolumeClaim{}, Name: sourceIndex, Values: func(o client.Object) []string {
				c, ok := o.(*corev1.PersistentVolumeClaim)
				if !ok || !wanted(c) {
					return nil
				}
				if kind, name, why := source(c); why == "" {
					return []string{anySource, kind + "/" + name}
				}
				return []string{anySource}
			}},
		},
		New: func(env engine.Env) engine.Func { return (&reconciler{Env: env, nodes: nodes}).reconcile },
	}
}

func ofContent(_ context.Context, _ engine.Env, o client.Object) []engine.Request {
	if c, ok := o.(*snapshots.VolumeSnapshotContent); !ok || c.Spec.Driver != storage.Provisioner {
		return nil
	}
	return []engine.Request{engine.RequestFor("", o.GetName())}
}

// ofSource maps a snapshot or a claim to the claims that wait for a copy of it.
func ofSource(kind string) func(context.Context, engine.Env, client.Object) []engine.Request {
	return func(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
		return waiting(ctx, env, o.GetNamespace(), kind+"/"+o.GetName(), nil)
	}
}

// waiting returns the chosen claims in a namespace, "" for all, that wait for a copy of source. A nil chosen means all.
func waiting(ctx context.Context, env engine.Env, namespace, source string,
	chosen func(*corev1.PersistentVolumeClaim) bool) []engine.Request {
	var list corev1.PersistentVolumeClaimList
	if err := env.ByIndex(ctx, &list, namespace, sourceIndex, source); err != nil {
		env.Log.Warn("could not list the claims that wait for a copy", "of", source, "namespace", namespace, "error", err)
		return nil
	}
	return engine.Requests(list.Items, chosen)
}

// ofClass maps a class to its claims that wait for a copy.
func ofClass(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	return waiting(ctx, env, "", anySource, func(c *corev1.PersistentVolumeClaim) bool {
		return helpers.GetPersistentVolumeClaimClass(c) == o.GetName()
	})
}

// ofClaim maps a claim to itself if it waits for a copy, and to the claims that wait for a copy of it.
func ofClaim(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := ofSource(storage.FromVolume)(ctx, env, o)
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok && wanted(c) {
		out = append(out, engine.RequestFor(c.Namespace, c.Name))
	}
	return out
}

// ofVolume maps a volume that must be filled to itself, and a filled one to the contents that wait for it.
func ofVolume(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok || v.Annotations[storage.ContentAnnotation] == "" {
		return nil
	}
	if v.Annotations[storage.CopiedAnnotation] != "" {
		return unfinished(ctx, env)
	}
	return []engine.Request{engine.RequestOf(ofKindVolume, "", v.Name)}
}

// ofNode maps a new, deleted or changed node to all unfinished requests. Changes of readiness, labels and the
// volume directory matter.
func ofNode(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	now, _ := is.(*corev1.Node)
	if before != nil && now != nil && nodestate.Ready(before) == nodestate.Ready(now) &&
		before.Annotations[storage.DirectoryAnnotation] == now.Annotations[storage.DirectoryAnnotation] &&
		maps.Equal(before.Labels, now.Labels) {
		return nil
	}
	out := append(unfinished(ctx, env), waiting(ctx, env, "", anySource, nil)...)
	var volumes corev1.PersistentVolumeList
	if err := env.Cache.List(ctx, &volumes); err != nil {
		env.Log.Warn("could not list the volumes that are to be filled", "error", err)
		return out
	}
	for i := range volumes.Items {
		if unfilled(&volumes.Items[i]) {
			out = append(out, engine.RequestOf(ofKindVolume, "", volumes.Items[i].Name))
		}
	}
	return out
}

// unfilled reports whether a volume must still be filled with a copy.
func unfilled(v *corev1.PersistentVolume) bool {
	return storage.Ours(v) && v.DeletionTimestamp == nil && v.Annotations[storage.ContentAnnotation] != "" &&
		v.Annotations[storage.CopiedAnnotation] == ""
}

// unfinished returns the contents of local volumes that are being deleted or not ready.
func unfinished(ctx context.Context, env engine.Env) []engine.Request {
	var list snapshots.VolumeSnapshotContentList
	if err := env.Cache.List(ctx, &list); err != nil {
		env.Log.Warn("could not list the contents of snapshots", "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(c *snapshots.VolumeSnapshotContent) bool {
		return c.Spec.Driver == storage.Provisioner &&
			(c.DeletionTimestamp != nil || c.Status == nil || c.Status.ReadyToUse == nil || !*c.Status.ReadyToUse)
	})
}

type reconciler struct {
	engine.Env
	nodes Nodes
	turns turns
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var err error
	switch {
	case req.Kind == ofKindVolume:
		err = r.fill(ctx, req)
	case req.Namespace != "":
		err = r.restore(ctx, req)
	default:
		err = r.content(ctx, req)
	}
	switch {
	case errors.Is(err, errWaits):
		return engine.Result{}, nil // turns enqueues it again
	case errors.Is(err, storage.ErrBusy):
		return engine.Result{RequeueAfter: again}, nil
	}
	return engine.Result{}, client.IgnoreNotFound(err)
}
