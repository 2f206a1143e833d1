package webhook

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// A webhook must not take the API server's memory with a response in YAML or with very many JSON values.
func TestResponsesThatTakeMemoryAreRefused(t *testing.T) {
	scheme := apiruntime.NewScheme()
	require.NoError(t, admissionv1.AddToScheme(scheme))
	const begin = `"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"`
	for name, c := range map[string]struct {
		code       int
		text, want string
	}{
		"JSON": {200, " {" + begin + `,"response":{"uid":"u","allowed":true}}`, ""},
		"YAML": {
			200, strings.ReplaceAll(begin, ", ", "\n") + "\na: [" + strings.Repeat("[],", 2_000_000) + "[]]", "no JSON object",
		},
		"values":  {200, "{" + begin + `,"a":[` + strings.Repeat("0,", 2_000_000) + "0]}", "more than 1048576 values"},
		"large":   {200, "{" + begin + `,"a":"` + strings.Repeat("x", MaxResponse) + `"}`, "larger than the limit"},
		"error":   {500, "internal error", "internal error"},
		"a lot":   {500, "a: [" + strings.Repeat("[],", 2_000_000) + "[]]", "an error on the server"},
		"nothing": {200, "", "0-length response"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.text))
			}))
			defer server.Close()
			w, err := webhookutil.NewGenericWebhook(scheme, serializer.NewCodecFactory(scheme),
				Bound(&rest.Config{Host: server.URL}, MaxResponse), []schema.GroupVersion{admissionv1.SchemeGroupVersion},
				wait.Backoff{Steps: 1})
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			review := &admissionv1.AdmissionReview{}
			err = w.RestClient.Post().Body(&admissionv1.AdmissionReview{}).Do(t.Context()).Into(review)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.True(t, review.Response.Allowed)
		})
	}
}
