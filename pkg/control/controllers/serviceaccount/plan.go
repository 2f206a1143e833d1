package serviceaccount

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const defaultName = "default"

// Plan returns the account to create, or nil.
func Plan(ns *corev1.Namespace, there *corev1.ServiceAccount) *corev1.ServiceAccount {
	if there != nil || ns.DeletionTimestamp != nil || ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	}
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: defaultName}}
}
