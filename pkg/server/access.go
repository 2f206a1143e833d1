package server

import (
	"crypto/x509"

	"github.com/coracle-dev/coracle/pkg/api/access"
)

// newAccess builds the authentication and authorization of requests from the options. issuers and audiences are
// accepted in service account tokens; clients returns the CAs of client certificates.
func (p *process) newAccess(issuers, audiences []string, clients func() []*x509.Certificate) (*access.Access, error) {
	claims, err := p.RequiredClaims()
	if err != nil {
		return nil, err
	}
	return access.New(access.Config{
		AuthenticationFile: p.AuthenticationConfig, AuthorizationFile: p.AuthorizationConfig, Anonymous: p.AnonymousAuth,
		OIDC: access.OIDC{
			Issuer: p.OIDCIssuer, ClientID: p.OIDCClientID, CAFile: p.OIDCCAFile, UsernameClaim: p.OIDCUsernameClaim,
			UsernamePrefix: p.OIDCUsernamePrefix,
			GroupsClaim:    p.OIDCGroupsClaim, GroupsPrefix: p.OIDCGroupsPrefix, SigningAlgorithms: p.OIDCSigningAlgs,
			RequiredClaims: claims,
		},
		Webhook: access.Webhook{Kubeconfig: p.TokenWebhook, Version: p.TokenWebhookVersion, TTL: p.TokenWebhookTTL},
		Proxy: access.Proxy{
			CAFile: p.RequestHeaderCA, Names: p.RequestHeaderNames, Clients: clients, NameHeaders: p.RequestHeaderUsers,
			UIDHeaders:   p.RequestHeaderUIDs,
			GroupHeaders: p.RequestHeaderGroups, ExtraPrefixes: p.RequestHeaderPrefixes,
		},
		Issuers: issuers, Audiences: audiences, Log: component(p.log, "access"),
	})
}
