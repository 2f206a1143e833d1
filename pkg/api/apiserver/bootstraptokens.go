package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// bootstrapTokens gives upstream's bootstrap token authenticator, which gets them by name, the Secrets of
// kube-system.
type bootstrapTokens struct {
	corev1listers.SecretNamespaceLister
	getter getter
}

func (b bootstrapTokens) Get(name string) (*corev1.Secret, error) {
	return one[*corev1.Secret](b.getter.cache, b.getter.secrets, corev1.Resource("secrets"), metav1.NamespaceSystem, name)
}
