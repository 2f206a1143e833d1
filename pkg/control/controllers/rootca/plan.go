package rootca

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	name        = "kube-root-ca.crt"
	description = "kubernetes.io/description"
	text        = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints " +
		"such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Plan returns the desired ConfigMap, or nil if it is up to date or the namespace is terminating.
func Plan(ns *corev1.Namespace, there *corev1.ConfigMap, bundle string) *corev1.ConfigMap {
	if ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	}
	data := map[string]string{"ca.crt": bundle}
	if there == nil {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: name, Annotations: map[string]string{description: text}},
			Data:       data,
		}
	}
	if maps.Equal(there.Data, data) && there.Annotations[description] != "" {
		return nil
	}
	want := there.DeepCopy()
	want.Data = data
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	want.Annotations[description] = text
	return want
}
