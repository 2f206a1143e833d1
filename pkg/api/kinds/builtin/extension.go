package builtin

import (
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	internal "k8s.io/kubernetes/pkg/apis/core"
	corev1conv "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// This file exports functions of built-in subresources and validation that extensions use too.

// ValidatePod sets a pod's defaults and validates it as for a create.
func ValidatePod(pod *corev1.Pod) field.ErrorList {
	legacyscheme.Scheme.Default(pod)
	in := &internal.Pod{}
	if err := legacyscheme.Scheme.Convert(pod, in, nil); err != nil {
		return field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	return validation.ValidatePodCreate(in,
		podutil.GetValidationOptionsFromPodSpecAndMeta(&in.Spec, nil, &in.ObjectMeta, nil))
}

// ValidateLogOptions validates the query of a log request, which has the options of a pod's log (PodLogOptions). It
// reports whether the client follows the log. Errors are Status errors.
func ValidateLogOptions(req *http.Request, name string) (follow bool, err error) {
	o, err := logOptions(req, name)
	if err != nil {
		return false, err
	}
	return o.Follow, nil
}

func logOptions(req *http.Request, name string) (*internal.PodLogOptions, error) {
	o, err := streamOptions(req, corev1conv.Convert_url_Values_To_v1_PodLogOptions,
		corev1conv.Convert_v1_PodLogOptions_To_core_PodLogOptions)
	if err != nil {
		return nil, err
	}
	if o.Stream == nil {
		o.Stream = new(internal.LogStreamAll)
	}
	if errs := validation.ValidatePodLogOptions(o, true); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PodLogOptions").GroupKind(), name, errs)
	}
	return o, nil
}

// LogHandler returns a handler that sends a log to the client and closes it. With follow, it sends each part as it
// arrives.
func LogHandler(on kind.Connection, in io.ReadCloser, follow bool) http.Handler {
	return logHandler{on: on, in: in, follow: follow}
}

// AdmitProxy runs admission for a connection to a pod or service, as for a proxy request to path.
func AdmitProxy(req *http.Request, on kind.Connection, path string) error {
	if r, _, _ := on.Target(); r.Kind == "Service" {
		return on.Admit(req.Context(), &internal.ServiceProxyOptions{Path: path})
	}
	return on.Admit(req.Context(), &internal.PodProxyOptions{Path: path})
}

// Forward returns a handler that forwards requests to location, with the path behind the subresource and the query.
// It refuses upgrades, and redirects, which the client would follow with its credentials for this server.
func Forward(req *http.Request, on kind.Connection, location *url.URL, rt http.RoundTripper) http.Handler {
	location.Path, location.RawQuery = proxyPath(on), req.URL.RawQuery
	h := proxy.NewUpgradeAwareHandler(location, rt, false, false, responder{on})
	h.UseLocationHost, h.RejectForwardingRedirects = true, true
	return h
}
