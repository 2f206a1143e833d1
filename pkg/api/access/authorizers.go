package access

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	bounds "github.com/coracle-dev/coracle/pkg/api/webhook"
)

// Types of authorizers in a file, besides apiserver.TypeWebhook.
const (
	Node = "Node"
	RBAC = "RBAC"
)

// chain is a file's list of authorizers.
type chain []link

type link struct {
	kind    string
	webhook *webhook.WebhookAuthorizer // only for apiserver.TypeWebhook
}

// Configured reports whether a file lists the authorizers. Has, Webhooks and Authorize may be called only if it
// does.
func (a *Access) Configured() bool { return a.chain.Load() != nil }

// Has reports whether the file lists an authorizer of the type.
func (a *Access) Has(kind string) bool {
	return slices.ContainsFunc(*a.chain.Load(), func(l link) bool { return l.kind == kind })
}

// Webhooks reports whether the file lists a webhook.
func (a *Access) Webhooks() bool { return a.Has(string(apiserver.TypeWebhook)) }

// Authorize calls the file's authorizers in order until one allows or denies. own has the authorizers of this
// process by type.
func (a *Access) Authorize(ctx context.Context, attrs authorizer.Attributes,
	own map[string]authorizer.AuthorizerFunc) (authorizer.Decision, string, error) {
	var reasons []string
	var errs []error
	for _, l := range *a.chain.Load() {
		ask := own[l.kind]
		if l.webhook != nil {
			ask = l.webhook.Authorize
		}
		decision, reason, err := ask(ctx, attrs)
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), errors.Join(errs...)
}

// reloadAuthorization reads the authorization file and applies it if it is valid.
func (a *Access) reloadAuthorization() error {
	c, fresh, err := load[*apiserver.AuthorizationConfiguration](a, a.cfg.AuthorizationFile)
	if err != nil || !fresh {
		return err
	}
	errs := validation.ValidateAuthorizationConfiguration(a.matches(), nil, c,
		sets.New(Node, RBAC, string(apiserver.TypeWebhook)), sets.New(string(apiserver.TypeWebhook)))
	for i, o := range c.Authorizers {
		if o.Webhook != nil && o.Webhook.ConnectionInfo.KubeConfigFile == nil {
			errs = append(errs,
				field.Invalid(field.NewPath("authorizers").Index(i).Child("webhook", "connectionInfo", "type"),
					o.Webhook.ConnectionInfo.Type, "a KubeConfigFile is required"))
		}
	}
	if err := errs.ToAggregate(); err != nil {
		return err
	}
	made := make(chain, 0, len(c.Authorizers))
	for _, o := range c.Authorizers {
		l := link{kind: string(o.Type)}
		if o.Webhook != nil {
			if l.webhook, err = a.authorizationWebhook(o); err != nil {
				return err
			}
		}
		made = append(made, l)
	}
	a.chain.Store(&made)
	return nil
}

// events provides kube-apiserver's metrics of webhooks and their match conditions.
type events struct {
	metrics.NoopRequestMetrics
	metrics.WebhookMetrics
	authorizationcel.MatcherMetrics
}

func (a *Access) authorizationWebhook(o apiserver.AuthorizerConfiguration) (*webhook.WebhookAuthorizer, error) {
	w := o.Webhook
	config, err := webhookutil.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = w.Timeout.Duration
	onError := authorizer.DecisionDeny
	if w.FailurePolicy == apiserver.FailurePolicyNoOpinion {
		onError = authorizer.DecisionNoOpinion
	}
	allowed, refused := w.AuthorizedTTL.Duration, w.UnauthorizedTTL.Duration
	if !w.CacheAuthorizedRequests {
		allowed = 0
	}
	if !w.CacheUnauthorizedRequests {
		refused = 0
	}
	return webhook.New(bounds.Bound(config, maxAnswer), w.SubjectAccessReviewVersion, allowed, refused,
		*webhook.DefaultRetryBackoff(), onError, w.MatchConditions, o.Name,
		events{WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: authorizationcel.NewMatcherMetrics()},
		a.matches())
}
