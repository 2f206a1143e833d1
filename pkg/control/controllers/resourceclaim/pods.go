package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
)

// claimIndex finds pods by the names of their claims.
const claimIndex = "resourceClaims"

// New declares the reconciler of pods. It creates their claims from templates, and reserves claims for pods that
// the scheduler did not bind.
func New() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "resource-claim", Workers: 2,
		Watches: []engine.Watch{
			{Object: &corev1.Pod{}, Event: ofPod},
			{Object: &resourcev1.ResourceClaim{}, Event: podsOfClaim},
			{Object: &resourcev1.ResourceClaimTemplate{}, Event: podsOfTemplate},
		},
		Writes: []engine.Write{
			{Object: &resourcev1.ResourceClaim{}, Parts: []engine.Part{engine.Create, engine.Status}},
			{Object: &corev1.Pod{}, Parts: []engine.Part{engine.Status}},
		},
		Indexes: []engine.Index{{Object: &corev1.Pod{}, Name: claimIndex, Values: func(o client.Object) []string {
			p, ok := o.(*corev1.Pod)
			if !ok {
				return nil
			}
			var names []string
			for name := range resourceclaim.PodClaims(p) {
				names = append(names, name)
			}
			return names
		}}},
		New: func(env engine.Env) engine.Func { return engine.Each(env, (&pods{env}).reconcile) },
	}
}

func ofPod(_ context.Context, _ engine.Env, was, is client.Object) []engine.Request {
	p, ok := is.(*corev1.Pod)
	if !ok || len(p.Spec.ResourceClaims) == 0 {
		return nil
	}
	if before, ok := was.(*corev1.Pod); ok && before.Spec.NodeName == p.Spec.NodeName &&
		resourceclaim.PodStatusEqual(before.Status.ResourceClaimStatuses, p.Status.ResourceClaimStatuses) {
		return nil
	}
	return []engine.Request{engine.RequestFor(p.Namespace, p.Name)}
}

// podsOfClaim maps a deleted claim to the pod that owned it, and an allocated claim to bound pods for which the
// scheduler did not reserve it.
func podsOfClaim(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if is == nil {
		if ref := metav1.GetControllerOfNoCopy(was); ref != nil && ref.Kind == "Pod" {
			return []engine.Request{engine.RequestFor(was.GetNamespace(), ref.Name)}
		}
		return nil
	}
	c, ok := is.(*resourcev1.ResourceClaim)
	if !ok || c.Status.Allocation == nil {
		return nil
	}
	var list corev1.PodList
	if err := env.ByIndex(ctx, &list, c.Namespace, claimIndex, c.Name); err != nil {
		env.Log.Warn("could not list the pods of a claim", "claim", c.Namespace+"/"+c.Name, "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(p *corev1.Pod) bool {
		return p.Spec.NodeName != "" && !resourceclaim.IsReservedForPod(p, c, false)
	})
}

// podsOfTemplate maps a new template to the pods that may wait for it.
func podsOfTemplate(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	if was != nil || is == nil {
		return nil
	}
	var list corev1.PodList
	if err := env.Cache.List(ctx, &list, client.InNamespace(is.GetNamespace())); err != nil {
		env.Log.Warn("could not list pods", "namespace", is.GetNamespace(), "error", err)
		return nil
	}
	return engine.Requests(list.Items, func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool {
			return c.ResourceClaimTemplateName != nil && *c.ResourceClaimTemplateName == is.GetName()
		})
	})
}

// Named is the name of a pod's entry and of the claim that was created for it.
type Named struct {
	Entry, Claim string
}

// PlanPod returns the entries for which claims must be created, and the existing claims that are missing in the
// pod's status. claims are the claims in the pod's namespace.
func PlanPod(p *corev1.Pod,
	claims []resourcev1.ResourceClaim) (create []corev1.PodResourceClaim, record []Named, err error) {
	if p.DeletionTimestamp != nil || podstate.Ended(p) {
		return nil, nil, nil
	}
	for _, entry := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &entry)
		if err != nil && !errors.Is(err, resourceclaim.ErrClaimNotFound) {
			return nil, nil, err
		}
		if entry.ResourceClaimTemplateName == nil || err == nil && name == nil {
			continue
		}
		made := ""
		for i := range claims {
			c := &claims[i]
			if !metav1.IsControlledBy(c, p) {
				continue
			}
			if name != nil && c.Name == *name {
				// A terminating claim remains while the pod uses it. A new one is created after it is gone.
				made = c.Name
				break
			}
			if c.DeletionTimestamp == nil && c.Annotations[resourcev1.PodResourceClaimAnnotation] == entry.Name {
				made = c.Name
			}
		}
		switch {
		case made == "":
			create = append(create, entry)
		case name == nil || *name != made:
			record = append(record, Named{entry.Name, made})
		}
	}
	return create, record, nil
}

// longestPrefix leaves room for a hyphen and the 5 random characters of a generated name, as upstream.
const longestPrefix = 57

func fromTemplate(p *corev1.Pod, entry string, t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaim {
	annotations := maps.Clone(t.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = entry
	prefix := p.Name + "-" + entry + "-"
	if n := len(prefix); n > longestPrefix {
		prefix = p.Name[:len(p.Name)*longestPrefix/n] + "-" + entry[:len(entry)*longestPrefix/n]
	}
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: new(true)}
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, GenerateName: prefix, Labels: maps.Clone(t.Spec.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{owner},
		}, Spec: *t.Spec.Spec.DeepCopy(),
	}
}

type pods struct{ engine.Env }

func (r *pods) reconcile(ctx context.Context, p *corev1.Pod) (engine.Result, error) {
	var list resourcev1.ResourceClaimList
	if err := r.Cache.List(ctx, &list, client.InNamespace(p.Namespace)); err != nil {
		return engine.Result{}, err
	}
	create, record, err := PlanPod(p, list.Items)
	if err != nil {
		return engine.Result{}, err
	}
	for _, entry := range create {
		claim, err := r.create(ctx, p, entry)
		if engine.Terminating(err) {
			return engine.Result{}, nil
		}
		if err != nil {
			r.Events.Event(p, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", entry.Name,
				err)
			return engine.Result{}, client.IgnoreNotFound(err) // templates are watched
		}
		record = append(record, Named{entry.Name, claim.Name})
	}
	if len(record) > 0 {
		if err := r.record(ctx, p, record); err != nil {
			return engine.Result{}, err
		}
	}
	if p.Spec.NodeName == "" {
		return engine.Result{}, nil // the scheduler reserves
	}
	return engine.Result{}, r.reserve(ctx, p)
}

func (r *pods) create(ctx context.Context, p *corev1.Pod,
	entry corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	var template resourcev1.ResourceClaimTemplate
	if err := r.Cache.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: *entry.ResourceClaimTemplateName},
		&template); err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *entry.ResourceClaimTemplateName, err)
	}
	claim := fromTemplate(p, entry.Name, &template)
	return claim, r.Client.Create(ctx, claim)
}

func (r *pods) record(ctx context.Context, p *corev1.Pod, names []Named) error {
	all := map[string]*string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		all[s.Name] = s.ResourceClaimName
	}
	for _, n := range names {
		all[n.Entry] = &n.Claim
	}
	statuses := make([]corev1.PodResourceClaimStatus, 0, len(all))
	for _, entry := range slices.Sorted(maps.Keys(all)) {
		statuses = append(statuses, corev1.PodResourceClaimStatus{Name: entry, ResourceClaimName: all[entry]})
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID}, "status": map[string]any{"resourceClaimStatuses": statuses},
	})
	if err != nil {
		return err
	}
	return r.Client.Status().Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}},
		client.RawPatch(types.MergePatchType, body))
}

// reserve reserves the allocated claims of a pod that was bound without the scheduler.
func (r *pods) reserve(ctx context.Context, p *corev1.Pod) error {
	if p.DeletionTimestamp != nil || podstate.Ended(p) {
		return nil
	}
	for name, owned := range resourceclaim.PodClaims(p) {
		var stored resourcev1.ResourceClaim
		err := r.Cache.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: name}, &stored)
		if apierrors.IsNotFound(err) {
			continue // its creation causes an event
		}
		if err != nil {
			return err
		}
		if owned {
			if err := resourceclaim.IsForPod(p, &stored, false); err != nil {
				return err
			}
		}
		if stored.Status.Allocation == nil || resourceclaim.IsReservedForPod(p, &stored, false) {
			continue
		}
		claim := stored.DeepCopy()
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: p.Name, UID: p.UID,
		})
		if err := r.Client.Status().Update(ctx, claim); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	return nil
}
