package pod

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/node/part"
)

// overlay returns ours with the fields and conditions of other writers from api. If another component has declared the
// pod ended, that phase stays, and the agent stops the pod.
func overlay(api, ours *corev1.PodStatus, parts []part.Part) corev1.PodStatus {
	s := *ours
	if ended := api.Phase == corev1.PodSucceeded || api.Phase == corev1.PodFailed; ended && api.Phase != ours.Phase {
		s.Phase, s.Reason, s.Message = api.Phase, api.Reason, api.Message
	}
	s.QOSClass, s.NominatedNodeName = api.QOSClass, api.NominatedNodeName
	s.ResourceClaimStatuses, s.ExtendedResourceClaimStatus = api.ResourceClaimStatuses, api.ExtendedResourceClaimStatus
	s.Conditions = nil
	disrupted := false
	for _, c := range ours.Conditions {
		by := c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonTerminationByKubelet
		disrupted = disrupted || by
		if owned(c.Type, parts) || by {
			s.Conditions = append(s.Conditions, c)
		}
	}
	for _, c := range api.Conditions {
		if !owned(c.Type, parts) && !(disrupted && c.Type == corev1.DisruptionTarget) {
			s.Conditions = append(s.Conditions, c)
		}
	}
	return s
}

// owned reports whether the agent or one of its parts writes a condition.
func owned(t corev1.PodConditionType, parts []part.Part) bool {
	switch t {
	case corev1.AllContainersRestarting, corev1.PodResizePending, corev1.PodResizeInProgress, corev1.PodScheduled,
		corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers:
		return true
	}
	return slices.ContainsFunc(parts, func(p part.Part) bool { return p.ConditionType() == t })
}

// post writes the status in the background if it differs from the API's. Called with the lock held.
func (w *worker) post() {
	s, pod := &w.status, w.stored()
	if pod == nil {
		return
	}
	full := w.forAPI(pod)
	if s.writing || w.api.gone || apiequality.Semantic.DeepEqual(pod.Status, full) ||
		s.sent != nil && apiequality.Semantic.DeepEqual(*s.sent, full) {
		return
	}
	s.writing = true
	if !w.m.goRun(w.postLoop) {
		s.writing = false
	}
}

// postLoop retries until the status is written.
func (w *worker) postLoop() {
	again := backoff.Backoff{First: 100 * time.Millisecond, Most: 10 * time.Second}
	for {
		var of types.UID
		var err error
		if panicked := w.m.guard.Do("pod status", func() { of, err = w.postOnce(w.m.ctx) }); panicked != nil {
			err = panicked
		}
		w.mu.Lock()
		if err == nil {
			w.status.writing = false
			w.post()
			w.mu.Unlock()
			return
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || w.api.gone || w.m.ctx.Err() != nil {
			w.status.writing = false // a deletion event follows, or a new mirror replaced it
			if now := w.stored(); now != nil && now.UID != of {
				w.post()
			}
			w.mu.Unlock()
			return
		}
		p := w.api.pod
		w.mu.Unlock()
		w.m.log.Warn("could not write pod status, retrying", "pod", p.Namespace+"/"+p.Name, "error", err)
		again.Wait(w.m.ctx)
	}
}

// postOnce writes the status once. It returns the UID of the pod, or mirror, that it wrote to.
func (w *worker) postOnce(ctx context.Context) (of types.UID, err error) {
	w.postMu.Lock()
	defer w.postMu.Unlock()
	w.mu.Lock()
	base := w.stored()
	if base == nil || w.status.want == nil {
		w.mu.Unlock()
		return "", nil
	}
	want := w.forAPI(base)
	w.mu.Unlock()
	// An update costs the server less than a patch. It conflicts if the pod has changed since.
	answer := base.DeepCopy()
	answer.Status = *want.DeepCopy()
	err = w.m.c.Client.Status().Update(ctx, answer)
	if apierrors.IsConflict(err) {
		answer, err = w.patchStatus(ctx, base, want)
	}
	if err != nil {
		return base.UID, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.stored()
	if now == nil || now.UID != base.UID { // a new mirror has no status yet
		return base.UID, nil
	}
	w.status.sent, w.status.at, w.status.answer = &want, time.Now(), answer.Status
	if answer.UID == now.UID && !older(answer.ResourceVersion, now.ResourceVersion) {
		if w.api.static {
			w.api.mirror = answer
		} else {
			w.api.pod = answer
		}
	}
	return base.UID, nil
}

// patchStatus writes the difference between the status of base and want. Other changes of the pod do not matter.
func (w *worker) patchStatus(ctx context.Context, base *corev1.Pod, want corev1.PodStatus) (*corev1.Pod, error) {
	before, err := json.Marshal(&corev1.Pod{Status: base.Status})
	if err != nil {
		return nil, err
	}
	after, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: base.UID}, Status: want})
	if err != nil {
		return nil, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, err
	}
	answer := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: base.Namespace, Name: base.Name}}
	return answer, w.m.c.Client.Status().Patch(ctx, answer, ctrl.RawPatch(types.StrategicMergePatchType, patch))
}
