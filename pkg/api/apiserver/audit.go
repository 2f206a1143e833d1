package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	authfilters "k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/api/registry"
	own "github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// mostAudited is the maximum size, in bytes of protobuf, of a list recorded in an audit event. Longer lists are marked
// as truncated.
const mostAudited = 2 << 20

// audited wraps the handlers after authentication in upstream's audit filter. Without an audit log it returns next.
func (s *Server) audited(next http.Handler) http.Handler {
	if s.cfg.Audit == nil {
		return next
	}
	return authfilters.WithAudit(next, s.cfg.Audit, s.cfg.Audit, s.auditsStart)
}

// auditsStart reports whether a request has the audit stage ResponseStarted.
func (s *Server) auditsStart(_ *http.Request, info *request.RequestInfo) bool {
	return s.longRunning(info)
}

func (s *Server) refuseUnauthenticated(w http.ResponseWriter, req *http.Request, err error) {
	var failed http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.fail(w, req, err) })
	if s.cfg.Audit != nil {
		failed = authfilters.WithFailedAuthenticationAudit(failed, s.cfg.Audit, s.cfg.Audit)
	}
	failed.ServeHTTP(w, req)
}

// auditCodecs encodes the objects of requests and responses.
var auditCodecs = sync.OnceValue(func() serializer.CodecFactory {
	return serializer.NewCodecFactory(own.Scheme())
}) //nolint:gochecknoglobals // made when first needed

// auditing returns the request's audit event if its policy level is at least level, otherwise nil.
func auditing(ctx context.Context, level auditinternal.Level) *audit.AuditContext {
	if ac := audit.AuditContextFrom(ctx); ac != nil && !ac.GetEventLevel().Less(level) {
		return ac
	}
	return nil
}

// auditObject records the request's object in the event.
func auditObject(ctx context.Context, obj runtime.Object) {
	if auditing(ctx, auditinternal.LevelMetadata) == nil {
		return
	}
	info, _ := request.RequestInfoFrom(ctx)
	gvr := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	audit.LogRequestObject(ctx, obj, obj.GetObjectKind().GroupVersionKind().GroupVersion(), gvr, info.Subresource,
		auditCodecs())
}

// auditBody records a body that is not an object, such as a patch. If it is not JSON it is recorded as a JSON string.
func auditBody(req *http.Request) {
	held, ok := req.Body.(*heldBody)
	if !ok || len(held.raw) == 0 || auditing(req.Context(), auditinternal.LevelRequest) == nil {
		return
	}
	raw := held.raw
	if !json.Valid(raw) {
		raw, _ = json.Marshal(string(raw))
	}
	audit.LogRequestPatch(req.Context(), raw)
}

func auditStatus(ctx context.Context, status *metav1.Status) {
	if auditing(ctx, auditinternal.LevelMetadata) != nil {
		audit.LogResponseObject(ctx, status, metav1.SchemeGroupVersion, auditCodecs())
	}
}

func auditResult(ctx context.Context, res registry.Result) {
	if auditing(ctx, auditinternal.LevelRequestResponse) == nil {
		return
	}
	obj := res.Object
	if res.Entry != nil {
		obj = res.Entry.Whole().Object
	}
	if obj != nil { // encoding sets its kind, and cached objects must not be modified
		obj = obj.DeepCopyObject()
		audit.LogResponseObject(ctx, obj, obj.GetObjectKind().GroupVersionKind().GroupVersion(), auditCodecs())
	}
}

// auditList records the response's list in the event.
func auditList(ctx context.Context, t registry.Target, lm metav1.ListMeta, entries []*cache.Entry) {
	ac := auditing(ctx, auditinternal.LevelRequestResponse)
	if ac == nil {
		return
	}
	size := 0
	items := make([]runtime.Object, 0, len(entries))
	for _, e := range entries {
		if size += len(e.Proto()); size > mostAudited {
			// Upstream's truncating backend uses the same annotation.
			audit.AddAuditAnnotation(ctx, "audit.k8s.io/truncated", "true")
			return
		}
		items = append(items, e.Whole().Object.DeepCopyObject().(client.Object))
	}
	list := t.Resource.NewList()
	if meta.SetList(list, items) != nil {
		return
	}
	gvk := t.Resource.GroupVersionKind
	gvk.Kind += "List"
	list.GetObjectKind().SetGroupVersionKind(gvk)
	list.SetResourceVersion(lm.ResourceVersion)
	list.SetContinue(lm.Continue)
	list.SetRemainingItemCount(lm.RemainingItemCount)
	audit.LogResponseObject(ctx, list, gvk.GroupVersion(), auditCodecs())
}
