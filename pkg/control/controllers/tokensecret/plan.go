package tokensecret

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Decision is what a Secret needs. The zero value means nothing.
type Decision struct {
	Delete bool
	Write  *corev1.Secret
	Sign   bool // Write still needs a token
}

// accountOf returns the name of a token Secret's service account, "" for other Secrets.
func accountOf(s *corev1.Secret) string {
	if s.Type != corev1.SecretTypeServiceAccountToken {
		return ""
	}
	return s.Annotations[corev1.ServiceAccountNameKey]
}

// Plan decides about a token Secret. account is its service account, nil if it does not exist. ca is the bundle
// that verifies the API server.
func Plan(secret *corev1.Secret, account *corev1.ServiceAccount, ca []byte) Decision {
	if secret.DeletionTimestamp != nil {
		return Decision{}
	}
	if account == nil || !isFor(secret, account.UID) {
		return Decision{Delete: true}
	}
	sign := len(secret.Data[corev1.ServiceAccountTokenKey]) == 0
	trust := len(ca) > 0 && !bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], ca)
	where := len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0
	if !sign && !trust && !where || secret.Immutable != nil && *secret.Immutable {
		return Decision{}
	}
	next := secret.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	if trust {
		next.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	if where {
		next.Data[corev1.ServiceAccountNamespaceKey] = []byte(next.Namespace)
	}
	next.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	return Decision{Write: next, Sign: sign}
}

// isFor reports whether a Secret may belong to the account with this UID. A Secret without a UID may.
func isFor(secret *corev1.Secret, uid types.UID) bool {
	want := secret.Annotations[corev1.ServiceAccountUIDKey]
	return want == "" || want == string(uid)
}
