package volumebinding

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	helpers "k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/apis/storage"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/nodestate"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// ofClaim maps a claim to itself, to the volume that it names, and to the volumes that name it.
func ofClaim(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := []engine.Request{engine.RequestFor(o.GetNamespace(), o.GetName())}
	if c, ok := o.(*corev1.PersistentVolumeClaim); ok && c.Spec.VolumeName != "" {
		out = append(out, engine.RequestFor("", c.Spec.VolumeName))
	}
	var list corev1.PersistentVolumeList
	if err := env.ByIndex(ctx, &list, "", claimRefIndex, o.GetNamespace()+"/"+o.GetName()); err != nil {
		env.Log.Warn("could not list the volumes of a claim", "claim", o.GetNamespace()+"/"+o.GetName(), "error", err)
	}
	return append(out, engine.Requests(list.Items, nil)...)
}

// ofVolume maps a volume to itself and to its claim, or to the unbound claims of its class.
func ofVolume(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	out := []engine.Request{engine.RequestFor("", o.GetName())}
	v, ok := o.(*corev1.PersistentVolume)
	if !ok {
		return out
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		return append(out, engine.RequestFor(ref.Namespace, ref.Name))
	}
	return append(out, unbound(ctx, env, helpers.GetPersistentVolumeClass(v))...)
}

// ofClass maps a class to the unbound claims that name it or no class.
func ofClass(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	return append(unbound(ctx, env, o.GetName()), unbound(ctx, env, "")...)
}

func unbound(ctx context.Context, env engine.Env, class string) []engine.Request {
	var list corev1.PersistentVolumeClaimList
	if err := env.ByIndex(ctx, &list, "", unboundIndex, class); err != nil {
		env.Log.Warn("could not list the claims of a class", "class", class, "error", err)
		return nil
	}
	return engine.Requests(list.Items, nil)
}

// ofPod maps a pod to its claims when it is created, bound, over or deleted.
func ofPod(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Pod)
	now, _ := is.(*corev1.Pod)
	if now == nil {
		now = before
	} else if before != nil && before.Spec.NodeName == now.Spec.NodeName && over(before) == over(now) {
		return nil
	}
	var out []engine.Request
	for _, name := range podstate.ClaimNames(now) {
		out = append(out, engine.RequestFor(now.Namespace, name))
	}
	return out
}

// ofNode maps a node that is created, deleted or changes its readiness or volume directory to the terminating
// local volumes, and to the unbound claims of local classes.
func ofNode(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	before, _ := was.(*corev1.Node)
	now, _ := is.(*corev1.Node)
	if before != nil && now != nil && nodestate.Ready(before) == nodestate.Ready(now) &&
		before.Annotations[storage.DirectoryAnnotation] == now.Annotations[storage.DirectoryAnnotation] {
		return nil
	}
	var volumes corev1.PersistentVolumeList
	var classes storagev1.StorageClassList
	if env.Cache.List(ctx, &volumes) != nil || env.Cache.List(ctx, &classes) != nil {
		return nil
	}
	out := engine.Requests(volumes.Items, func(v *corev1.PersistentVolume) bool {
		return v.DeletionTimestamp != nil && slices.Contains(v.Finalizers, storage.Finalizer)
	})
	for i := range classes.Items {
		if c := &classes.Items[i]; c.Provisioner == storage.Provisioner {
			out = append(out, unbound(ctx, env, c.Name)...)
		}
	}
	return out
}
