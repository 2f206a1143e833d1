package builtin

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestStaticPod(t *testing.T) {
	const head = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n"
	named := func(p *corev1.Pod) error { p.Namespace = "default"; return nil }
	for _, text := range []string{head, "# a comment\n---\n" + head + "---\n# the end\n",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","creationTimestamp":null},"spec":{"containers":[{"name":"c","image":"i"}]},"status":{}}`} {
		p, err := StaticPod([]byte(text), named)
		require.NoError(t, err, text)
		require.Equal(t, corev1.RestartPolicyAlways, p.Spec.RestartPolicy, "it has defaults")
		require.Equal(t, corev1.PodQOSBestEffort, p.Status.QOSClass)
	}
	for text, why := range map[string]string{
		"":                           "empty",
		"# nothing\n---\n":           "empty",
		"kind: [":                    "not a pod",
		"\x00\xff":                   "not a pod",
		"just text":                  "not a pod",
		head + "---\n" + head:        "several documents",
		"apiVersion: v1\nkind: List": `of kind "List"`,
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: p}\n":           `of kind "Deployment"`,
		head + "  hostname: [a]\n":                                               "not a pod",
		head + "  hostnam: a\n":                                                  "hostnam",
		head + "  nodeName: a\n  nodeName: b":                                    "nodeName",
		head + "  restartPolicy: Sometimes\n":                                    "restartPolicy",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n":             "spec.containers",
		head + "  serviceAccountName: default\n":                                 "serviceaccounts",
		head + "  imagePullSecrets: [{name: s}]\n":                               "secrets",
		head + "  volumes: [{name: v, secret: {secretName: s}}]\n":               "secrets",
		head + "  volumes: [{name: v, configMap: {name: s}}]\n":                  "configmaps",
		head + "  volumes: [{name: v, persistentVolumeClaim: {claimName: s}}]\n": "persistentvolumeclaims",
		head +
			"  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: " +
			"{requests: {storage: 1Gi}}}}}}]\n": "ephemeral",
		head +
			"  volumes: [{name: v, csi: {driver: d.example.org}}]\n": "csidrivers",
		head +
			"  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n": "serviceAccountToken",
		head +
			"  volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: t, path: p}}]}}]\n": "clustertrustbundles",
		head +
			"  resourceClaims: [{name: r, resourceClaimName: r}]\n": "resourceclaims",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i, envFrom: " +
			"[{configMapRef: {name: c}}]}]\n": "configmaps",
	} {
		_, err := StaticPod([]byte(text), named)
		require.ErrorContains(t, err, why, text)
	}
	_, err := StaticPod([]byte(head), func(*corev1.Pod) error { return errors.New("no") })
	require.EqualError(t, err, "no")
}

func FuzzStaticPod(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n"))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := StaticPod(data, func(p *corev1.Pod) error { p.Namespace = "default"; return nil })
		if err == nil && (p.Name == "" || len(p.Spec.Containers) == 0) {
			t.Fatalf("an invalid pod is accepted: %v", p)
		}
	})
}
