import java.nio.charset.StandardCharsets;
import java.io.PrintStream;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.sql.Statement;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;

public class Listen {
    static final String CHANNEL = "Orders \"new\"";
    static final String QUOTED = "\"Orders \"\"new\"\"\"";
    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    static Connection connect() throws SQLException {
        String url = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/" + System.getenv("PGDATABASE");
        return DriverManager.getConnection(url, System.getenv("PGUSER"), System.getenv("PGPASSWORD"));
    }

    static String json(String s) {
        StringBuilder b = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < ' ') {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }

    static void yourTurn() throws SQLException {
        try (Connection c = connect(); Statement s = c.createStatement()) {
            if (!c.isValid(5)) {
                throw new IllegalStateException("the connection is not valid");
            }
            c.setAutoCommit(false);
            s.execute("NOTIFY " + QUOTED + ", 'rolled back'");
            c.rollback();
            s.execute("NOTIFY " + QUOTED + ", 'committed'");
            c.commit();
            c.setAutoCommit(true);
            try (PreparedStatement p = c.prepareStatement("SELECT pg_notify(?, ?)")) {
                // The driver prepares a statement on the server when it is used for the fifth time.
                for (int i = 0; i < 6; i++) {
                    p.setString(1, i == 0 ? CHANNEL : "nobody listens");
                    p.setString(2, "it's a \"parameter\" €");
                    p.executeQuery().close();
                }
            }
        }
    }

    static boolean listen() throws SQLException {
        try (Connection c = connect(); Statement s = c.createStatement()) {
            s.execute("LISTEN " + QUOTED);
            OUT.println("listening");
            PGConnection pg = c.unwrap(PGConnection.class);
            while (true) {
                PGNotification[] all = pg.getNotifications(0);
                if (all == null) {
                    continue;
                }
                for (PGNotification n : all) {
                    OUT.println("{\"channel\": " + json(n.getName()) + ", \"payload\": " + json(n.getParameter()) + "}");
                    if (n.getParameter().equals("your turn")) {
                        yourTurn();
                        OUT.println("done");
                    }
                    if (n.getParameter().equals("stop")) {
                        return true;
                    }
                }
            }
        }
    }

    public static void main(String[] args) throws InterruptedException {
        while (true) {
            try {
                if (listen()) {
                    return;
                }
            } catch (SQLException e) {
                Thread.sleep(50);
            }
        }
    }
}
