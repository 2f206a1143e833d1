package certificates

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/coracle-dev/coracle/pkg/engine"
)

func TestOldPodCertificateRequestsAreDeleted(t *testing.T) {
	old := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "d",
			Name:              "old",
			UID:               "1",
			CreationTimestamp: metav1.NewTime(now.Add(-15 * time.Minute)),
		},
	}
	young := &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         "d",
			Name:              "young",
			UID:               "2",
			CreationTimestamp: metav1.NewTime(now.Add(-time.Minute)),
		},
	}
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(old, young).Build()
	f := NewPodCleaner().New(engine.Env{Client: c, Cache: c, Now: func() time.Time { return now }})
	for name, again := range map[string]time.Duration{"old": 0, "young": 14 * time.Minute, "none": 0} {
		res, err := f(t.Context(), engine.RequestFor("d", name))
		require.NoError(t, err)
		require.Equal(t, again, res.RequeueAfter, name)
	}
	var left certificatesv1.PodCertificateRequestList
	require.NoError(t, c.List(t.Context(), &left))
	require.Len(t, left.Items, 1)
	require.Equal(t, "young", left.Items[0].Name)
}
