package horizon

import "github.com/jackc/pgx/v5"

// Unconverted has a session read the texts of others as the server has them, whatever encoding its role or its environment asks for. A conversion fails for the
// whole answer if one statement of one session has a character that the other encoding lacks, or is one of a database in another encoding.
func Unconverted(c *pgx.ConnConfig) {
	c.RuntimeParams["client_encoding"] = "SQL_ASCII"
	if c.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol { // which insists on it; a database in UTF-8 does not convert that either
		c.RuntimeParams["client_encoding"] = "UTF8"
	}
}
