package rootca

import (
	"testing"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPlanBundles(t *testing.T) {
	bundle := func(name, signer, pem string) certificatesv1.ClusterTrustBundle {
		return certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: pem}}
	}
	signer := APIServer().Name
	name := bundleName(signer, "new")
	require.Regexp(t, `^kubernetes\.io:kube-apiserver-serving:[0-9a-f]{24}$`, name)
	other := bundle("example.org:x:1", "example.org/x", "theirs")

	write, stale := PlanBundles([]certificatesv1.ClusterTrustBundle{other}, signer, "new")
	require.Equal(t, name, write.Name)
	require.Equal(t, "new", write.Spec.TrustBundle)
	require.Empty(t, write.ResourceVersion)
	require.Empty(t, stale)

	write, stale = PlanBundles([]certificatesv1.ClusterTrustBundle{
		bundle(bundleName(signer, "old"), signer, "old"), other, bundle(name, signer, "new"),
	}, signer, "new")
	require.Nil(t, write)
	require.Len(t, stale, 1)
	require.Equal(t, bundleName(signer, "old"), stale[0].Name)

	there := []certificatesv1.ClusterTrustBundle{bundle(name, signer, "changed by somebody")}
	write, stale = PlanBundles(there, signer, "new")
	require.Equal(t, "new", write.Spec.TrustBundle)
	require.Equal(t, "1", write.ResourceVersion)
	require.Equal(t, "changed by somebody", there[0].Spec.TrustBundle)
	require.Empty(t, stale)
}
